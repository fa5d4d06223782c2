"""Memory that is used again once nobody holds it.

Fresh memory costs a page fault per 4 KiB when it is first touched, which takes longer than
filling it. A window's arrays are all of a size, so the ones that the consumer has let go of serve
the next window.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

# references to an array that only the recycler holds: its list, the loop, and getrefcount itself
_UNUSED = 3
_SMALL_BYTES = 1 << 16  # malloc itself recycles small pieces


class Recycler:
    """Hands out arrays; a view of one, a slice or a torch tensor on it keeps it in use."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._owners: list[NDArray[np.uint8]] = []

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array with arbitrary content."""
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        if num_bytes < _SMALL_BYTES:
            return np.empty(shape, dtype)
        return self._owner(num_bytes)[:num_bytes].view(dtype).reshape(shape)

    def _owner(self, num_bytes: int) -> NDArray[np.uint8]:
        for owner in self._owners:
            if num_bytes <= len(owner) <= 2 * num_bytes and sys.getrefcount(owner) == _UNUSED:
                return owner
        # a little room, for ragged columns differ a little from window to window
        fresh: NDArray[np.uint8] = np.empty(num_bytes + num_bytes // 16, np.uint8)
        if len(self._owners) == self._limit:
            self._owners = [kept for kept in self._owners if sys.getrefcount(kept) > _UNUSED]
        if len(self._owners) < self._limit:
            self._owners.append(fresh)
        return fresh
