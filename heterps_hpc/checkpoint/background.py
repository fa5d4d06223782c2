"""Calls in a thread, one after another, so that copying, checksums and the disk overlap.

Reading, writing and hashing large blocks release the interpreter's lock, so one thread is enough
to have two of them at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

T = TypeVar("T")


class InTurn:
    """Calls that a thread works off in their order; few may wait, so that memory stays bounded."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._calls: deque[Future[Any]] = deque()
        self._thread = ThreadPoolExecutor(1, "heterps-checkpoint")

    def put(self, work: Callable[..., object], *arguments: object) -> None:
        """Have it done soon; an earlier call's error is raised here."""
        while len(self._calls) >= self._max_waiting:
            self._calls.popleft().result()
        self._calls.append(self._thread.submit(work, *arguments))

    def finish(self) -> None:
        """Wait until all is done; the first error is raised."""
        while self._calls:
            self._calls.popleft().result()

    def stop(self) -> None:
        """Drop what has not begun and wait for the rest: afterwards no call touches anything."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._calls.clear()

    def ahead(self, source: Iterator[T]) -> Generator[T, None, None]:
        """The same items; while one is in use, the thread fetches the next."""
        coming = self._thread.submit(next, source, None)
        try:
            while (item := coming.result()) is not None:
                coming = self._thread.submit(next, source, None)
                yield item
        finally:  # nobody else may touch the source's file while the thread still reads it
            if not coming.cancel():  # a call that is cancelled never begins
                wait([coming])
