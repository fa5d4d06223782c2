"""Rows by key for scoring: sorted keys and their vectors, found by binary search.

Two plain arrays, so that an export can be mapped from disk and looked up without loading it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.checkpoint import Contents
from heterps_hpc.dataset.columns import Keys
from heterps_hpc.model import Lookup

UInt64s = NDArray[np.uint64]
Matrix = NDArray[Any]


@dataclass(frozen=True)
class SortedTable:
    """One table as it was when it was saved; a key that has no row reads as zeros."""

    keys: UInt64s
    vectors: Matrix

    @classmethod
    def of_checkpoint(cls, contents: Contents, name: str) -> SortedTable:
        """All rows of a table, read into memory."""
        manifest = contents.checkpoint.manifest
        spec = manifest.tables[name]
        num_rows = contents.num_rows(name, range(manifest.num_partitions))
        keys = np.empty(num_rows, np.uint64)
        vectors = np.empty((num_rows, spec.dim), spec.dtype)
        first = 0
        for partition in range(manifest.num_partitions):
            for rows in contents.rows(name, partition):
                last = first + len(rows["keys"])
                keys[first:last], vectors[first:last] = rows["keys"], rows["vectors"]
                first = last
        order = np.argsort(keys)
        return cls(keys[order], vectors[order])

    def has(self, keys: UInt64s) -> NDArray[np.bool_]:
        """Which keys have a row."""
        if len(self.keys) == 0:
            return np.zeros(len(keys), np.bool_)
        found: NDArray[np.bool_] = self.keys[self._places(keys)] == keys
        return found

    def rows(self, keys: UInt64s) -> Matrix:
        """The vectors of some keys."""
        if len(self.keys) == 0:
            return np.zeros((len(keys), self.vectors.shape[1]), self.vectors.dtype)
        vectors: Matrix = np.asarray(self.vectors[self._places(keys)])
        vectors[~self.has(keys)] = 0
        return vectors

    def pooled(self, lookup: Lookup, keys: Keys) -> Matrix:
        """What the embedding layer writes for these samples."""
        lengths = np.ones(keys.num_rows, np.int64)
        if keys.offsets is not None:
            lengths = np.diff(keys.offsets)
        vectors = self.rows(keys.keys)
        if keys.weights is not None:
            vectors = vectors * keys.weights.astype(vectors.dtype)[:, None]
        sample = np.repeat(np.arange(keys.num_rows), lengths)
        if lookup.pooling == "none":
            place = np.arange(len(sample)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            kept = place < lookup.max_keys
            shape = (keys.num_rows, lookup.max_keys, vectors.shape[1])
            sequence = np.zeros(shape, vectors.dtype)
            sequence[sample[kept], place[kept]] = vectors[kept]
            return sequence.reshape(keys.num_rows, -1)
        if keys.offsets is None:
            return vectors
        out = np.zeros((keys.num_rows, vectors.shape[1]), vectors.dtype)
        np.add.at(out, sample, vectors)
        if lookup.pooling == "mean":
            out /= np.maximum(lengths, 1).astype(out.dtype)[:, None]
        return out

    def _places(self, keys: UInt64s) -> NDArray[np.int64]:
        places = np.searchsorted(self.keys, keys)
        return np.minimum(places, len(self.keys) - 1)
