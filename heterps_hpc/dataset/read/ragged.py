"""Picks samples of a slot that has several keys per sample.

Where all samples of a window have the same number of keys, as histories cut to a length do, their
keys are a matrix and a sample is a row of it, which is copied as one piece: four times cheaper
than key by key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset.columns import Int64s, offsets_of


class Ragged:
    """How many keys each sample of a window has, and where they begin."""

    def __init__(self, lengths: NDArray[Any]) -> None:
        self._lengths = lengths
        self._starts: Int64s | None = None
        self._width = int(lengths[0]) if len(lengths) else 0
        if bool((lengths != self._width).any()):
            self._starts = np.cumsum(lengths, dtype=np.int64)
            self._starts -= lengths

    def offsets(self) -> Int64s:
        """CSR offsets of all samples."""
        if self._starts is None:
            return _even_offsets(len(self._lengths), self._width)
        return offsets_of(self._lengths)

    def pick(self, rows: Int64s) -> PickedKeys:
        """What is needed to copy the keys of some samples, in that order."""
        if self._starts is None:
            return PickedKeys(rows, self._width, _even_offsets(len(rows), self._width))
        lengths = self._lengths[rows]
        offsets = offsets_of(lengths)
        # the start of each key's sample, moved on by the key's place in the sample
        places = np.repeat(self._starts[rows] - offsets[:-1], lengths)
        places += np.arange(len(places))
        return PickedKeys(places, None, offsets)


class PickedKeys:
    """Samples of one slot, by number if all have `width` keys, else by the place of each key."""

    def __init__(self, places: Int64s, width: int | None, offsets: Int64s) -> None:
        self._places = places
        self._width = width
        self.offsets = offsets

    @property
    def num_keys(self) -> int:
        """Keys of all picked samples."""
        return int(self.offsets[-1])

    def take(self, values: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """Copy what belongs to the picked samples, their keys or weights, into `out`."""
        # mode="clip" lets numpy write into `out` directly; places are in range by construction
        if self._width is None:
            return np.take(values, self._places, out=out, mode="clip")
        if self._width:
            matrix = values.reshape(-1, self._width)
            np.take(matrix, self._places, 0, out.reshape(-1, self._width), mode="clip")
        return out


def _even_offsets(num_rows: int, width: int) -> Int64s:
    offsets = np.arange(num_rows + 1)
    offsets *= width
    return offsets
