"""Which columns of a block lie side by side in a shard, to be read at once.

Writers put the chunks of a block one behind the other, column by column, so that a rank which
wants many columns of a block needs few reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset.shard_schema import Column

_MAX_BUFFERS = 512  # of one read; systems allow 1024


class Group(NamedTuple):
    """Columns side by side in one block: the first in the order, one past the last, and where
    they lie in the file."""

    first: int
    last: int
    address: int
    num_bytes: int


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
        self._groups: list[Group] = []
        self._ends: list[int] = [0]
        if chosen:
            sizes = [column.item_bytes * block_rows for column in chosen]
            places = np.array([addresses[column.path] for column in chosen], np.int64)
            self._find(places, np.array(sizes, np.int64))

    def _find(self, places: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Of all blocks at once: one by one takes longer than reading them."""
        begins = np.ones(places.shape, bool)
        begins[1:] = np.diff(places, axis=0) != sizes[:-1, None]
        begins[::_MAX_BUFFERS] = True
        blocks, firsts = np.nonzero(begins.T)
        lasts = np.append(firsts[1:], 0)
        lasts[lasts == 0] = len(sizes)  # the next group begins another block
        size_before = np.append(0, np.cumsum(sizes))
        facts = (
            firsts,
            lasts,
            places[firsts, blocks],
            size_before[lasts] - size_before[firsts],
        )
        self._groups = list(map(Group._make, zip(*(fact.tolist() for fact in facts), strict=True)))
        self._ends += np.cumsum(begins.sum(axis=0)).tolist()

    def groups(self, block: int) -> list[Group]:
        """The columns of a block, by what one read can get."""
        return self._groups[self._ends[block] : self._ends[block + 1]]
