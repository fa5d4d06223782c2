"""Small summaries of a slot's keys, made while writing: how many distinct, and a fair sample.

Both are mergeable, so that shards can be written by different processes in any order, and
bounded: about 1.7 MB per slot however long the data.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.counter_rng import UInt64s, mix64, random_bits
from heterps_hpc.dataset.manifest import EXACT_KEYS, KEY_SAMPLE_SIZE

_REGISTER_BITS = 14
_NUM_REGISTERS = 1 << _REGISTER_BITS
_CACHE_BITS = 14
_CHUNK = 8192


class Cardinality:
    """Number of distinct keys: exact up to 4,096, then HyperLogLog (standard error 0.8 %)."""

    def __init__(self) -> None:
        self.registers: NDArray[np.uint8] = np.zeros(_NUM_REGISTERS, np.uint8)
        self.exact: UInt64s | None = np.empty(0, np.uint64)
        # Clicks are Zipfian: a small cache of keys already counted spares most of the work.
        self._cache: UInt64s = np.zeros(1 << _CACHE_BITS, np.uint64)
        self._zero_counted = False

    def add(self, keys: UInt64s) -> None:
        """Count some keys, repeats and all."""
        # in chunks that stay in the processor's cache, and of which the first fills our own
        for first in range(0, len(keys), _CHUNK):
            self._add(keys[first : first + _CHUNK])

    def _add(self, keys: UInt64s) -> None:
        places = (keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _CACHE_BITS)
        places = places.view(np.int64)
        new = self._cache[places] != keys
        if not self._zero_counted:  # an empty cache cell looks like key 0
            new |= keys == 0
        if not new.any():
            return
        fresh, where = keys[new], places[new]
        self._zero_counted = self._zero_counted or bool((fresh == 0).any())
        self._cache[where] = fresh
        self._count(fresh)
        if self.exact is not None:
            merged = np.union1d(self.exact, fresh)
            self.exact = merged if len(merged) <= EXACT_KEYS else None

    def _count(self, keys: UInt64s) -> None:
        hashes = mix64(keys + np.uint64(0x632BE59BD9B4E019))
        cells = (hashes >> np.uint64(64 - _REGISTER_BITS)).astype(np.int64)
        rest = (hashes << np.uint64(_REGISTER_BITS)) | np.uint64(1 << (_REGISTER_BITS - 1))
        # the exponent of the rest as a floating-point number gives its leading zeros
        exponents = rest.astype(np.float64).view(np.uint64) >> np.uint64(52)
        ranks = (np.uint64(1023 + 64) - exponents).astype(np.uint8)
        higher = ranks > self.registers[cells]  # soon few are
        np.maximum.at(self.registers, cells[higher], ranks[higher])

    def merge(self, other: Cardinality) -> None:
        """Count what the other one counted too."""
        np.maximum(self.registers, other.registers, out=self.registers)
        if self.exact is None or other.exact is None:
            self.exact = None
        else:
            merged = np.union1d(self.exact, other.exact)
            self.exact = merged if len(merged) <= EXACT_KEYS else None

    def estimate(self) -> int:
        """Distinct keys seen."""
        if self.exact is not None:
            return len(self.exact)
        count = float(_NUM_REGISTERS)
        bias = 0.7213 / (1 + 1.079 / count)
        raw = bias * count * count / float(np.sum(np.exp2(-self.registers.astype(np.float64))))
        empty = int(np.count_nonzero(self.registers == 0))
        if raw <= 2.5 * count and empty:
            return round(count * math.log(count / empty))  # linear counting, better when few
        return round(raw)


class KeySample:
    """Up to 65,536 keys, drawn uniformly over a slot's occurrences.

    Each occurrence gets a random tag from (seed, shard, its number) and the smallest tags stay:
    a reservoir whose result does not depend on who wrote which shard when.
    """

    def __init__(self, seed: int, size: int = KEY_SAMPLE_SIZE) -> None:
        self.seed = seed
        self.size = size
        self.tags: UInt64s = np.empty(0, np.uint64)
        self.keys: UInt64s = np.empty(0, np.uint64)
        self._seen = 0
        self._limit = np.uint64(2**64 - 1)

    def add(self, keys: UInt64s, bits: UInt64s | None = None) -> None:
        """Offer the next occurrences; `bits` are random ones, which several slots may share."""
        if bits is None:
            tags = random_bits(self.seed, self._seen, len(keys))
        else:
            tags = bits * np.uint64(self.seed | 1)  # odd: a bijection, another for each slot
        self._seen += len(keys)
        kept = np.flatnonzero(tags <= self._limit)
        if len(kept):
            self._take(tags[kept], keys[kept])

    def merge(self, other: KeySample) -> None:
        """Offer what the other one kept."""
        self._take(other.tags, other.keys)

    def _take(self, tags: UInt64s, keys: UInt64s) -> None:
        self.tags = np.concatenate([self.tags, tags])
        self.keys = np.concatenate([self.keys, keys])
        if len(self.tags) >= 2 * self.size:
            self.shrink()

    def shrink(self) -> None:
        """Keep no more than the sample itself."""
        if len(self.tags) > self.size:
            chosen = np.argpartition(self.tags, self.size - 1)[: self.size]
            self.tags, self.keys = self.tags[chosen], self.keys[chosen]
            self._limit = self.tags.max()

    def result(self) -> UInt64s:
        """The sample, in random order."""
        self.shrink()
        return self.keys[np.argsort(self.tags)]
