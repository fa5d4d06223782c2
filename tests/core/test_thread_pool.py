"""The thread pool that works on several tables at once."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from heterps_hpc.core import Table, TableConfig, ThreadPool
from heterps_hpc.runtime.tables import assign_threads
from tests.core.workload import table_contents, train


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_item_once(num_threads: int) -> None:
    done: list[int] = []  # appending is one step to Python: nothing is lost between threads
    thread_pool = ThreadPool(num_threads)
    for _ in range(20):
        thread_pool.for_each(done.append, range(100))
    assert Counter(done) == dict.fromkeys(range(100), 20)


def test_one_thread_keeps_the_order() -> None:
    order: list[str] = []
    ThreadPool(1).for_each(order.append, "heterogeneous")
    assert order == list("heterogeneous")


def test_they_really_work_at_once() -> None:
    both = threading.Barrier(2, timeout=20)
    ThreadPool(2).for_each(lambda _: both.wait(), range(2))


@pytest.mark.parametrize("num_threads", [1, 3])
def test_an_error_is_raised_when_all_calls_have_ended(num_threads: int) -> None:
    lock = threading.Lock()
    running = most = 0

    def work(item: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        try:
            if item == 7:
                raise KeyError("the seventh")
            threading.Event().wait(0.002)
        finally:
            with lock:
                running -= 1

    thread_pool = ThreadPool(num_threads)
    with pytest.raises(KeyError, match="the seventh"):
        thread_pool.for_each(work, range(30))
    assert running == 0
    assert most == num_threads  # so there were others to wait for
    thread_pool.for_each(work, range(7))  # and it can be used again


def test_tables_learn_the_same_bits() -> None:
    def learn(num_threads: int) -> list[dict[int, bytes]]:
        config = TableConfig(dim=6, optimizer="adam", counters=True, track_steps=True)
        tables = [Table(config) for _ in range(6)]
        ThreadPool(num_threads).for_each(lambda t: train([t], 10, num_distinct=2000), tables)
        return [table_contents(table) for table in tables]

    alone = learn(1)
    assert learn(4) == alone
    assert len({len(contents) for contents in alone}) == 1


@pytest.mark.parametrize(
    ("num_threads", "num_tables", "assigned"),
    [(1, 5, (1, 1)), (2, 4, (1, 2)), (2, 3, (2, 1)), (8, 1, (8, 1)), (32, 26, (1, 13))],
)
def test_threads_go_to_tables_of_which_there_are_enough(
    num_threads: int, num_tables: int, assigned: tuple[int, int]
) -> None:
    assert assign_threads(num_threads, num_tables) == assigned
