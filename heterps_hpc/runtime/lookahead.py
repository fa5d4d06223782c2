"""Batches with a look at the one behind: the reader knows which rows will be needed next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from heterps_hpc.dataset import Batch, Reader


class LookAhead:
    """Gives a reader's batches, and shows each one a turn before it is given."""

    def __init__(self, reader: Reader, show: Callable[[Batch], None]) -> None:
        self._reader = reader
        self._show = show
        self._next: Batch | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        current = next(self._reader) if self._next is None else self._next
        self._next = next(self._reader, None)
        if self._next is not None:
            self._show(self._next)
        return current

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()
