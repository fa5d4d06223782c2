"""Which columns of a block lie side by side in a shard, to be read at once.

Writers put the chunks of a block one behind the other, column by column, so that a rank which
wants many columns of a block needs few reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from heterps_hpc.dataset.shardfile import Column

_MAX_BUFFERS = 512  # of one read; systems allow 1024


class Blocks:
    """The places of the blocks of a shard's columns of one item per row."""

    def __init__(
        self, columns: Sequence[Column], addresses: Mapping[str, list[int]], block_rows: int
    ) -> None:
        by_row = [column for column in columns if column.per == "row"]
        there = [place for place, column in enumerate(by_row) if addresses.get(column.path)]
        # which of the columns are here, in the order of the file
        self.order = sorted(there, key=lambda place: addresses[by_row[place].path][0])
        chosen = [by_row[place] for place in self.order]
        self._addresses = np.array([addresses[column.path] for column in chosen], np.int64)
        sizes = np.array([[column.item_bytes * block_rows] for column in chosen], np.int64)
        self._known: dict[int, list[tuple[int, int, int]]] = {}
        if chosen:
            self._gaps = np.diff(self._addresses, axis=0) != sizes[:-1]
            self._gaps[_MAX_BUFFERS - 1 :: _MAX_BUFFERS] = True

    def groups(self, block: int) -> list[tuple[int, int, int]]:
        """(first in the order, one past the last, place in the file) of columns side by side."""
        known = self._known.get(block)
        if known is None:
            known = self._known[block] = self._find(block)
        return known

    def _find(self, block: int) -> list[tuple[int, int, int]]:
        starts = [0, *(np.flatnonzero(self._gaps[:, block]) + 1).tolist()]
        places = self._addresses[starts, block].tolist()
        bounds = pairwise([*starts, len(self.order)])
        return [(low, high, place) for (low, high), place in zip(bounds, places, strict=True)]
