"""Buffers of the reader: used again when nobody holds a view, and never before."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heterps_hpc.dataset.read.buffer_pool import ALIGNMENT, BufferPool, key_matrix_bytes, padded

SIZE = 1 << 16
INT64 = np.dtype(np.int64)
Column = NDArray[np.int64]


def lend(pool: BufferPool, num_bytes: int = SIZE) -> Column:
    return pool.arena(num_bytes).empty((num_bytes // 8,), INT64)


def address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


HOLDERS: dict[str, Callable[[Column], Any]] = {
    "column": lambda column: column,
    "slice": lambda column: column[100:200],
    "slice of a slice": lambda column: column[100:200][5:],
    "reshaped": lambda column: column.reshape(-1, 8).T,
    "other dtype": lambda column: column.view(np.uint8),
    "memoryview": lambda column: column.data,
    "torch tensor": lambda column: torch.from_numpy(column[8:])[1:],
    "numpy of torch": lambda column: torch.from_numpy(column).numpy(),
    "reference cycle": lambda column: [column],
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_what_is_held_is_not_lent_again(kind: str) -> None:
    pool = BufferPool(4)
    column = lend(pool)
    column[:] = 7
    held = HOLDERS[kind](column)
    del column
    others = [lend(pool) for _ in range(6)]
    for other in others:
        other[:] = -1
    values = np.asarray(held[0] if isinstance(held, list) else held)
    assert (values.reshape(-1).view(np.uint8).reshape(-1, 8)[:, 0] == 7).all()


@pytest.mark.parametrize("kind", HOLDERS)
def test_what_nobody_holds_is_lent_again(kind: str) -> None:
    pool = BufferPool(4)
    first = address(lend(pool))
    for _ in range(6):
        held = HOLDERS[kind](lend(pool))
        if kind == "reference cycle":
            held.append(held)
        del held
    if kind == "reference cycle":
        gc.collect()
    assert address(lend(pool)) == first


def test_reference_counts_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreters that borrow references report lower counts than there are holders."""
    monkeypatch.setattr(sys, "getrefcount", lambda _: 3)
    pool = BufferPool(4)
    held = [lend(pool) for _ in range(4)]
    assert len({address(column) for column in held}) == 4


def test_one_column_keeps_its_whole_arena() -> None:
    pool = BufferPool(4)
    arena = pool.arena(2 * SIZE)
    first, second = arena.empty((SIZE // 8,), INT64), arena.empty((SIZE // 8,), INT64)
    second[:] = 5
    del arena, first
    for _ in range(5):
        lend(pool, 2 * SIZE)[:] = -1
    assert (second == 5).all()


def test_no_more_buffers_are_kept_than_the_limit() -> None:
    pool = BufferPool(2)
    held = [lend(pool) for _ in range(5)]
    places = [address(column) for column in held]
    assert len(set(places)) == 5
    held.clear()
    again = [lend(pool) for _ in range(2)]
    assert {address(column) for column in again} <= set(places[:2])
    assert len(pool._buffers) == 2


def test_a_buffer_of_another_size_makes_way() -> None:
    pool = BufferPool(1)
    lend(pool, SIZE)
    large = address(lend(pool, 8 * SIZE))
    assert address(lend(pool, 8 * SIZE)) == large
    assert len(pool._buffers) == 1


def test_prepared_memory_is_what_the_next_arena_gets() -> None:
    pool = BufferPool(4)
    held = lend(pool)
    pool.prepare(SIZE)
    (prepared,) = (buffer.memory for buffer in pool._buffers if buffer.is_free)
    column = lend(pool)
    assert address(column) != address(held)
    assert np.shares_memory(np.frombuffer(prepared, np.uint8), column)
    assert len(pool._buffers) == 2


def test_columns_are_aligned_and_apart() -> None:
    arena = BufferPool(1).arena(padded(3 * 5) + key_matrix_bytes(3, 11))
    odd = arena.empty((3, 5), np.dtype(np.uint8))
    keys = arena.key_matrix(3, 11)
    assert [address(array) % ALIGNMENT for array in (odd, *keys)] == [0, 0, 0, 0]
    odd[:], keys[:] = 1, 2
    assert (odd == 1).all()


def test_consumer_and_producer_in_two_threads() -> None:
    """Views dropped by another thread than the one that borrows: nothing held ever changes."""
    pool = BufferPool(6)
    held: list[tuple[int, Column]] = []
    wrong: list[int] = []
    lock = threading.Lock()

    def consume() -> None:
        for _ in range(2000):
            with lock:
                item = held.pop(0) if held else None
            if item is not None and not (item[1] == item[0]).all():
                wrong.append(item[0])

    consumer = threading.Thread(target=consume)
    consumer.start()
    for number in range(1000):
        column = lend(pool, 4096)
        column[:] = number
        with lock:
            held.append((number, column[:]))
            if len(held) > 4:
                del held[1]
    consumer.join()
    assert wrong == []
