"""Calls in a thread: in their order, few at a time, and over when they are said to be over."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from heterps_hpc.checkpoint import PlannedArray, ShardWriter
from heterps_hpc.checkpoint.background import InTurn

LIMIT_SECONDS = 10.0


@pytest.fixture
def thread() -> Iterator[InTurn]:
    made = InTurn(2)
    yield made
    made.stop()


def test_calls_keep_their_order(thread: InTurn) -> None:
    done: list[int] = []
    for number in range(50):
        thread.put(done.append, number)
    thread.finish()
    assert done == list(range(50))


def test_only_so_many_wait(thread: InTurn) -> None:
    go_on = threading.Event()
    for _ in range(2):
        thread.put(go_on.wait, LIMIT_SECONDS)
    blocked = threading.Thread(target=thread.put, args=(time.sleep, 0))
    blocked.start()
    blocked.join(0.1)
    assert blocked.is_alive()
    go_on.set()
    blocked.join(LIMIT_SECONDS)
    assert not blocked.is_alive()


def test_an_error_reaches_the_caller(thread: InTurn) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "full")

    thread.put(fail)
    with pytest.raises(OSError, match="full"):
        thread.finish()


def test_after_a_stop_nothing_happens(thread: InTurn) -> None:
    begun, done = threading.Event(), []

    def work() -> None:
        begun.set()
        time.sleep(0.1)
        done.append("first")

    thread.put(work)
    thread.put(done.append, "second")
    begun.wait(LIMIT_SECONDS)
    thread.stop()
    assert done == ["first"]  # what had begun has ended, the rest never begins


def test_the_next_item_is_fetched_while_one_is_in_use(thread: InTurn) -> None:
    fetched = [threading.Event() for _ in range(3)]

    def source() -> Iterator[int]:
        for number, event in enumerate(fetched):
            event.set()
            yield number

    for number in thread.ahead(source()):
        following = fetched[min(number + 1, 2)]
        assert following.wait(LIMIT_SECONDS)
    assert list(thread.ahead(iter([]))) == []


def test_errors_of_a_source_come_after_its_items(thread: InTurn) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise ValueError("damaged")

    items = thread.ahead(source())
    assert next(items) == 1
    with pytest.raises(ValueError, match="damaged"):
        next(items)


def test_leaving_early_waits_for_the_fetch(thread: InTurn) -> None:
    begun, over = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield 1
        begun.set()
        time.sleep(0.1)
        over.set()
        yield 2

    items = thread.ahead(source())
    assert next(items) == 1
    begun.wait(LIMIT_SECONDS)
    items.close()
    assert over.is_set()


def test_a_write_that_fails_late_fails_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last write fails in the thread, when no further call would have reported it."""
    plan = PlannedArray("dense", "w", "value", np.dtype(np.float32), (4,))

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with ShardWriter(tmp_path / "a.h5", 0, [plan], {}) as writer:
        monkeypatch.setattr(os, "pwrite", full)
        writer.write(plan, 0, np.zeros(4, np.float32))
        with pytest.raises(OSError, match="No space left"):
            writer.close()
    assert list(tmp_path.iterdir()) == []


def test_prefetched_items_may_be_left_when_the_thread_has_stopped() -> None:
    made, go_on = InTurn(2), threading.Event()

    def numbers() -> Iterator[int]:
        made.put(go_on.wait, LIMIT_SECONDS)  # the second number has to wait behind this
        yield 1
        yield 2

    items = made.ahead(numbers())
    assert next(items) == 1
    stopping = threading.Thread(target=made.stop)
    stopping.start()
    time.sleep(0.1)
    go_on.set()
    stopping.join(LIMIT_SECONDS)
    leaving = threading.Thread(target=items.close, daemon=True)
    leaving.start()
    leaving.join(LIMIT_SECONDS)
    assert not leaving.is_alive()
