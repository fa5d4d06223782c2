"""Memory that is used again once nobody holds it.

Fresh memory costs a page fault per 4 KiB when it is first touched, which takes longer than
filling it. Batches are all of about a size, so the memory of one that the consumer has let go of
serves a later one.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

# references to memory that only the recycler holds: its list, the loop, and getrefcount itself
_UNUSED = 3
# Columns begin at multiples of it. Copying from an address to one that is 8 to 24 bytes further,
# modulo 4096, is three times slower than any other (the processor takes what it loads for what it
# just stored), and large pieces of malloc's begin 16 bytes behind a page.
ALIGNMENT = 64


def padded(num_bytes: int) -> int:
    """Bytes that an array takes up in an arena."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """One piece of memory that is cut into the columns of a batch or a window."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The next array, with arbitrary content."""
        array: NDArray[Any] = np.ndarray(shape, dtype, self._memory, self._used)
        self._used += padded(array.nbytes)
        return array


class Recycler:
    """Hands out arenas; a column, a slice of one or a torch tensor on it keeps all of it in use."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._owners: list[NDArray[np.uint8]] = []

    def arena(self, num_bytes: int) -> Arena:
        """Room for arrays whose padded sizes add up to so many bytes."""
        owner = self._owner(num_bytes + ALIGNMENT)
        return Arena(owner[-owner.ctypes.data % ALIGNMENT :])

    def _owner(self, num_bytes: int) -> NDArray[np.uint8]:
        for owner in self._owners:
            if num_bytes <= len(owner) <= 2 * num_bytes and sys.getrefcount(owner) == _UNUSED:
                return owner
        # a little room, for ragged columns differ a little from batch to batch
        fresh: NDArray[np.uint8] = np.empty(num_bytes + num_bytes // 16, np.uint8)
        if len(self._owners) == self._limit:
            self._owners = [kept for kept in self._owners if sys.getrefcount(kept) > _UNUSED]
        if len(self._owners) < self._limit:
            self._owners.append(fresh)
        return fresh
