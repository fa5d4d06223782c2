"""How often each key occurs, in bounded memory, for the frequency threshold.

Counts are exact while they fit. Beyond the budget the keys seen least are forgotten (lossy
counting), so that a key may be called rare although it just reached the threshold, never the
other way round.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from data_prep.hashing import capped, rare_key
from heterps_hpc.dataset import Keys, SampleRows

log = logging.getLogger(__name__)

UInt64s = NDArray[np.uint64]
_ENTRY_BYTES = 16


class KeyCounts:
    """Counts of one slot's keys."""

    def __init__(self, budget_bytes: int) -> None:
        # merging holds the old and the new entries, and their order, for a moment
        self._limit = max(1024, budget_bytes // _ENTRY_BYTES // 3)
        self._waiting: list[UInt64s] = []
        self._num_waiting = 0
        self.keys: UInt64s = np.empty(0, np.uint64)
        self.counts: NDArray[np.int64] = np.empty(0, np.int64)
        self.forgotten = 0

    def add(self, keys: UInt64s) -> None:
        """Count some keys, repeats and all."""
        self._waiting.append(keys)
        self._num_waiting += len(keys)
        if self._num_waiting > max(self._limit // 2, 1 << 16):
            self.settle()

    def settle(self) -> None:
        """Count what is waiting to be counted."""
        if self._waiting:
            keys, counts = np.unique(np.concatenate(self._waiting), return_counts=True)
            self._waiting, self._num_waiting = [], 0
            self._merge(keys, counts.astype(np.int64))

    def merge(self, other: KeyCounts) -> None:
        """Add the other one's counts."""
        other.settle()
        self.forgotten = max(self.forgotten, other.forgotten)
        self._merge(other.keys, other.counts)

    def _merge(self, keys: UInt64s, counts: NDArray[np.int64]) -> None:
        both = np.concatenate([self.keys, keys])
        self.keys, inverse = np.unique(both, return_inverse=True)
        merged = np.bincount(inverse, np.concatenate([self.counts, counts]).astype(np.float64))
        self.counts = merged.astype(np.int64)
        while len(self.keys) > self._limit:
            least = int(self.counts.min())
            kept = self.counts > least
            self.keys, self.counts = self.keys[kept], self.counts[kept]
            self.forgotten = max(self.forgotten, least)

    def frequent(self, min_count: int) -> UInt64s:
        """Keys that occur at least so often, sorted."""
        self.settle()
        return self.keys[self.counts >= min_count]


@dataclass(frozen=True)
class KeyPolicy:
    """What becomes of a key: rare ones are one, and a cap folds the rest."""

    max_keys: int | None = None
    frequent: dict[str, UInt64s] = field(default_factory=dict)

    def apply(self, rows: SampleRows) -> SampleRows:
        """The same rows with the keys to be stored."""
        if self.max_keys is None and not self.frequent:
            return rows
        slots = {name: self._keys(name, keys) for name, keys in rows.slots.items()}
        return replace(rows, slots=slots)

    def _keys(self, slot: str, keys: Keys) -> Keys:
        flat = keys.keys
        frequent = self.frequent.get(slot)
        if frequent is not None:
            place = np.searchsorted(frequent, flat)
            place[place == len(frequent)] = 0
            known = frequent[place] == flat if len(frequent) else np.zeros(len(flat), bool)
            flat = np.where(known, flat, np.uint64(rare_key(slot)))
        if self.max_keys is not None:
            flat = capped(slot, flat, self.max_keys)
        return Keys(flat, keys.offsets, keys.weights)
