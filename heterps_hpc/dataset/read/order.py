"""The order in which an epoch visits the rows: a pure function, computed alike by every rank.

Blocks (runs of rows that are one chunk on disk) are shuffled over the whole dataset; every few
blocks of that order form a window, whose rows are shuffled among themselves; batches are cut
from the windows one after the other:

    blocks on disk    0 1 2 3 4 5 6 7            (4,096 rows each)
    shuffled          5 0 7 | 2 6 1 | 4 3        (a window: 32 blocks by default)
    rows shuffled     [  5,0,7  ][  2,6,1  ][ 4,3 ]
    batches           |--0--|--1--|--2--|--3--|-4-|

So a rank reads whole chunks, holds one window, and neighbours in a batch still come from places
all over the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.counter_rng import permutation, seed_of
from heterps_hpc.dataset.read.dataset import Dataset
from heterps_hpc.errors import UserError

Int64s = NDArray[np.int64]

WINDOW_ROWS = 131_072
_ROWS_IN_ORDER = 16_384
_BLOCKS, _ROWS = 1, 2  # what a seed is for


@dataclass(frozen=True)
class Position:
    """The next batch to read."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class BlockTable:
    """Where each block of the dataset is, in the order of the data."""

    shard: Int64s
    in_shard: Int64s
    num_rows: Int64s
    first_row: Int64s

    @classmethod
    def of(cls, dataset: Dataset) -> BlockTable:
        """The blocks of all shards."""
        step = dataset.manifest.block_rows
        rows = np.array([shard.num_rows for shard in dataset.manifest.shards], np.int64)
        counts = -(-rows // step)
        shard = np.repeat(np.arange(len(rows)), counts)
        in_shard = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        num_rows = np.minimum(step, rows[shard] - in_shard * step)
        return cls(shard, in_shard, num_rows, np.cumsum(num_rows) - num_rows)


@dataclass(frozen=True)
class Window:
    """Blocks whose rows are shuffled together; `first` is its first place in the epoch."""

    blocks: Int64s
    first: int
    num_rows: int
    seed: int | None

    @property
    def last(self) -> int:
        """One past its last place in the epoch."""
        return self.first + self.num_rows

    @cached_property
    def rows(self) -> Int64s | None:
        """For each place of the window, the row among those of its blocks; None: as they are."""
        return None if self.seed is None else permutation(self.seed, self.num_rows)


class Order:
    """Which rows make up which batch, in every epoch."""

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        window_rows: int = WINDOW_ROWS,
    ) -> None:
        if batch_size < 1 or window_rows < 1:
            raise UserError(
                f"batch_size {batch_size} and window_rows {window_rows} must be at least 1"
            )
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.num_rows = dataset.manifest.num_rows
        if drop_last:
            self.num_batches = self.num_rows // batch_size
        else:
            self.num_batches = -(-self.num_rows // batch_size)
        if self.num_batches == 0:
            raise UserError(
                f"{dataset.path}: {self.num_rows} rows make no whole batch of {batch_size}; "
                "use a smaller batch, or keep the last short one"
            )
        self.table = BlockTable.of(dataset)
        manifest = dataset.manifest
        self.blocks_per_window = max(1, window_rows // manifest.block_rows)
        if not shuffle and manifest.compression == "none":
            # nothing to mix; small windows stay in the cache
            rows = max(batch_size, _ROWS_IN_ORDER)
            self.blocks_per_window = min(self.blocks_per_window, -(-rows // manifest.block_rows))

    def batch_rows(self, index: int) -> int:
        """Rows of a batch; only the last may be short."""
        if not 0 <= index < self.num_batches:
            raise IndexError(f"batch {index} of {self.num_batches}")
        return min(self.batch_size, self.num_rows - index * self.batch_size)

    @property
    def used_rows(self) -> int:
        """Rows that an epoch visits."""
        return min(self.num_rows, self.num_batches * self.batch_size)

    def advance(self, position: Position, batches: int = 1) -> Position:
        """The position some batches later."""
        total = position.epoch * self.num_batches + position.batch + batches
        return Position(*divmod(total, self.num_batches))

    def windows(self, epoch: int, first_batch: int = 0) -> Iterator[Window]:
        """The windows of an epoch, from the one that holds the given batch."""
        count = len(self.table.shard)
        blocks = (
            permutation(seed_of(self.seed, epoch, _BLOCKS), count)
            if self.shuffle
            else np.arange(count)
        )
        ends = np.cumsum(self.table.num_rows[blocks])
        start = first_batch * self.batch_size
        for number, low in enumerate(range(0, count, self.blocks_per_window)):
            high = min(count, low + self.blocks_per_window)
            first = int(ends[low - 1]) if low else 0
            last = int(ends[high - 1])
            if last <= start:
                continue
            if first >= self.used_rows:
                return
            seed = seed_of(self.seed, epoch, _ROWS, number) if self.shuffle else None
            yield Window(blocks[low:high], first, last - first, seed)
