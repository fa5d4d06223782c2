"""A thread pool that works on several tables at once.

A rank has many tables and each has a lock of its own, so two threads on two tables wait for nobody;
two threads inside one table meet at a barrier after every phase of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")


class ThreadPool:
    """Calls a function for every item of a list; what it calls must release the GIL."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._helpers = ThreadPoolExecutor(max(1, num_threads - 1), "heterps-tables")

    def for_each(self, work: Callable[[T], object], items: Iterable[T]) -> None:
        """Call it for every item. When all calls have ended, an error of one of them is raised."""
        queue = iter(list(items))  # taking the next item of a list is one step to Python

        def work_off() -> None:
            for item in queue:
                work(item)

        helpers = [self._helpers.submit(work_off) for _ in range(self.num_threads - 1)]
        try:
            work_off()
        finally:
            wait(helpers)
        for helper in helpers:
            helper.result()
