"""The batches that every contender gets: drawn from a seed, so that all see the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SPREAD = np.uint64(0x9E3779B97F4A7C15)  # index -> key: all 64 bits in use


@dataclass(frozen=True)
class TableWorkload:
    """Slots of equal size; every sample has keys_per_slot keys in each."""

    title: str
    num_slots: int
    dim: int
    zipf: float  # 0 = uniform
    keys_per_slot: int
    num_batches: int  # distinct batches, gone through in turn
    batch_size: int = 4096
    num_rows: int = 200_000  # per slot

    @property
    def keys_per_batch(self) -> int:
        return self.batch_size * self.num_slots * self.keys_per_slot

    def batches(self) -> Iterator[list[NDArray[np.int64]]]:
        """Per batch and slot the indices of the keys, sample after sample."""
        rng = np.random.default_rng(1)
        draw = Skew(self.num_rows, self.zipf, rng)
        for _ in range(self.num_batches):
            n = self.batch_size * self.keys_per_slot
            yield [draw(n) for _ in range(self.num_slots)]

    def gradient(self) -> NDArray[np.float32]:
        rng = np.random.default_rng(2)
        shape = (self.batch_size, self.num_slots * self.dim)
        return (rng.standard_normal(shape) * 0.01).astype(np.float32)


class Skew:
    """Draws indices below n with Zipf's frequencies; which index is frequent is random."""

    def __init__(self, n: int, exponent: float, rng: np.random.Generator) -> None:
        self._rng = rng
        self._index_of_rank = rng.permutation(n)
        self._cumulative = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -exponent)

    def __call__(self, size: int) -> NDArray[np.int64]:
        at = self._rng.random(size) * self._cumulative[-1]
        rank = np.minimum(np.searchsorted(self._cumulative, at), len(self._cumulative) - 1)
        return np.asarray(self._index_of_rank[rank], dtype=np.int64)

    def by_rank(self) -> NDArray[np.int64]:
        return np.asarray(self._index_of_rank, dtype=np.int64)


WORKLOADS = {
    "a": TableWorkload("a: 26 slots, Zipf 1.1, dim 16", 26, 16, 1.1, 1, 10),
    "b": TableWorkload("b: 26 slots, uniform, dim 16", 26, 16, 0.0, 1, 10),
    "c": TableWorkload("c: 40 slots, Zipf 1.1, 20 keys, dim 16", 40, 16, 1.1, 20, 2),
    "d": TableWorkload("d: 26 slots, Zipf 1.1, dim 64", 26, 64, 1.1, 1, 6),
}
