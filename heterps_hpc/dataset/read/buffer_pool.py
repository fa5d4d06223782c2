"""Buffers that are used again once nobody holds a view of them.

Fresh memory costs a page fault per 4 KiB when it is first touched, which takes longer than
filling it. Batches are all of about a size, so the buffer of one that the consumer has dropped
serves a later one.

A buffer is lent out as an array of its own (the *lease*) on top of the buffer. Every column,
slice, memoryview or torch tensor made from a lease keeps the lease alive, and the pool holds only a
weak reference to it: the buffer is free when that reference is dead. Where an interpreter collects
late, a buffer is used again later, never too early.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Columns begin at multiples of it. Copying from an address to one that is 8 to 24 bytes further,
# modulo 4096, is three times slower than any other (the processor takes what it loads for what it
# just stored), and large blocks of malloc's begin 16 bytes behind a page.
ALIGNMENT = 64

_KEY = np.dtype(np.uint64)
_PAGE = 4096


def padded(num_bytes: int) -> int:
    """Bytes that an array takes up in an arena."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def key_matrix_bytes(num_slots: int, num_rows: int) -> int:
    """Bytes in an arena for the keys of so many slots with one key per sample."""
    return num_slots * padded(num_rows * _KEY.itemsize)


class Arena:
    """A lease that is cut into the columns of a batch or a window."""

    def __init__(self, lease: NDArray[np.uint8]) -> None:
        self._memory = lease[-lease.ctypes.data % ALIGNMENT :]
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The next array, with arbitrary content."""
        array: NDArray[Any] = np.ndarray(shape, dtype, self._memory, self._used)
        self._used += padded(array.nbytes)
        return array

    def key_matrix(self, num_slots: int, num_rows: int) -> NDArray[np.uint64]:
        """A row of keys for each slot, each row aligned."""
        width = padded(num_rows * _KEY.itemsize) // _KEY.itemsize
        return self.empty((num_slots, width), _KEY)[:, :num_rows]


class _Buffer:
    """Memory of the pool, and who holds it."""

    def __init__(self, num_bytes: int) -> None:
        self.memory: NDArray[np.uint8] = np.empty(num_bytes, np.uint8)
        self._lease: weakref.ref[NDArray[np.uint8]] | None = None

    @property
    def is_free(self) -> bool:
        """Whether nobody holds a view of it."""
        return self._lease is None or self._lease() is None

    def lend(self) -> NDArray[np.uint8]:
        """The whole buffer as a new array, which stays alive as long as any view of it."""
        # numpy shortens chains of views to the first array that does not itself rest on an array:
        # through a memoryview that is the lease, not the buffer's own memory
        lease: NDArray[np.uint8] = np.frombuffer(self.memory.data, np.uint8)
        self._lease = weakref.ref(lease)
        return lease


class BufferPool:
    """Lends out arenas; a view of one column keeps the whole arena in use."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffers: list[_Buffer] = []

    def arena(self, num_bytes: int) -> Arena:
        """Memory for arrays whose padded sizes add up to so many bytes."""
        return Arena(self._buffer(num_bytes + ALIGNMENT).lend())

    def prepare(self, num_bytes: int) -> None:
        """Have memory for one more arena of that size, with all of its pages, before its turn."""
        self._buffer(num_bytes + ALIGNMENT).memory[::_PAGE] = 0

    def _buffer(self, num_bytes: int) -> _Buffer:
        for buffer in self._buffers:
            if num_bytes <= len(buffer.memory) <= 2 * num_bytes and buffer.is_free:
                return buffer
        # a little more than asked for: ragged columns differ a little from batch to batch
        fresh = _Buffer(num_bytes + num_bytes // 16)
        if len(self._buffers) == self._limit:
            self._buffers = [kept for kept in self._buffers if not kept.is_free]
        if len(self._buffers) < self._limit:
            self._buffers.append(fresh)
        return fresh
