"""One window in memory: its blocks column by column, as they lie in the files, read bit by bit.

The reader fills the stage of the next window while it hands out the batches of the current one,
so that a new window does not hold training up. In order the columns themselves are handed out;
otherwise each batch is a copy of the rows that were picked for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset import shardfile
from heterps_hpc.dataset.columns import Int64s, Keys, Rows
from heterps_hpc.dataset.manifest import SlotSpec
from heterps_hpc.dataset.order import BlockTable, Window
from heterps_hpc.dataset.ragged import PickedKeys, Ragged
from heterps_hpc.dataset.recycler import Arena, Recycler, padded
from heterps_hpc.dataset.shardfile import Column
from heterps_hpc.dataset.storage import Storage
from heterps_hpc.errors import UserError


@dataclass(frozen=True)
class SlotColumns:
    """Where a slot is: its keys; their numbers, if a sample has many; their weights, if any."""

    name: str
    keys: Column
    lengths: Column | None
    weights: Column | None

    @classmethod
    def of(cls, slot: SlotSpec) -> SlotColumns:
        """The columns of a slot."""
        return cls(
            slot.name,
            shardfile.keys_column(slot.name, slot.kind),
            shardfile.lengths_column(slot.name) if slot.kind == "many" else None,
            shardfile.weights_column(slot.name) if slot.weighted else None,
        )


@dataclass(frozen=True)
class Wanted:
    """The columns of a reader: those that are not slots, by their use, and the slots."""

    single: dict[str, Column]
    slots: tuple[SlotColumns, ...]

    @cached_property
    def given(self) -> list[Column]:
        """Those that end up in batches."""
        groups = [[slot.keys, slot.weights] for slot in self.slots]
        return [*self.single.values(), *(column for group in groups for column in group if column)]

    @cached_property
    def columns(self) -> list[Column]:
        """Those that are read."""
        return [*self.given, *(slot.lengths for slot in self.slots if slot.lengths)]


@dataclass(frozen=True)
class Run:
    """Items first .. last - 1 of a column of one shard."""

    shard: int
    first: int
    last: int


class Stage:
    """The wanted columns of one window."""

    def __init__(
        self,
        window: Window,
        table: BlockTable,
        storage: Storage,
        wanted: Wanted,
        memory: Recycler,
    ) -> None:
        self.window = window
        self._table = table
        self._storage = storage
        self._wanted = wanted
        self._shards = table.shard[window.blocks].tolist()
        self._in_shard = table.in_shard[window.blocks].tolist()
        # Opening compares the shards with the manifest, before anything is made of the sizes
        # that they claim.
        starts = {number: storage.shard(number).starts for number in dict.fromkeys(self._shards)}
        self._row_runs = self._runs_of_rows()
        self._key_runs = {
            slot.name: self._runs_of_keys([starts[number][slot.name] for number in self._shards])
            for slot in wanted.slots
            if slot.lengths
        }
        self._columns = self._allocate(memory)
        self._num_bytes = sum(array.nbytes for array in self._columns.values())
        self._num_read = 0
        self._reading = self._read()
        self._ragged: dict[str, Ragged] = {}
        self._ids: Int64s | None = None

    def _runs_of_rows(self) -> list[Run]:
        """Neighbouring blocks as one."""
        counts = self._table.num_rows[self.window.blocks].tolist()
        step = self._storage.block_rows
        runs: list[Run] = []
        for shard, block, count in zip(self._shards, self._in_shard, counts, strict=True):
            first = block * step
            if runs and runs[-1].shard == shard and runs[-1].last == first:
                runs[-1] = Run(shard, runs[-1].first, first + count)
            else:
                runs.append(Run(shard, first, first + count))
        return runs

    def _runs_of_keys(self, starts: list[Int64s]) -> list[Run]:
        """One for each block."""
        return [
            Run(shard, *known[block : block + 2].tolist())
            for shard, block, known in zip(self._shards, self._in_shard, starts, strict=True)
        ]

    def _runs(self, column: Column) -> list[Run]:
        return self._row_runs if column.per == "row" else self._key_runs[column.slot]

    def _allocate(self, memory: Recycler) -> dict[str, NDArray[Any]]:
        columns = self._wanted.columns
        lengths = [sum(run.last - run.first for run in self._runs(column)) for column in columns]
        sizes = zip(columns, lengths, strict=True)
        arena = memory.arena(sum(padded(length * column.item_bytes) for column, length in sizes))
        return {
            column.path: arena.empty(column.shape(length), column.dtype)
            for column, length in zip(columns, lengths, strict=True)
        }

    def _read(self) -> Iterator[int]:
        """Read piece after piece; tells the bytes of each."""
        for column in self._wanted.columns:
            array = self._columns[column.path]
            place = 0
            for run in self._runs(column):
                end = place + run.last - run.first
                # asked for each time: a storage closes shards that were not used for long
                shard = self._storage.shard(run.shard)
                shard.read(column, run.first, run.last, array[place:end])
                yield (end - place) * column.item_bytes
                place = end

    def advance(self, share: float) -> None:
        """Read on until at least that share of the window is here."""
        goal = share * self._num_bytes
        while self._num_read < goal:
            read = next(self._reading, None)
            if read is None:
                return
            self._num_read += read

    def finish(self) -> None:
        """Read what is missing."""
        for _ in self._reading:
            pass
        if self._ids is not None:
            return
        for slot in self._wanted.slots:
            if slot.lengths:
                lengths = self._columns[slot.lengths.path]
                self._check_lengths(slot.name, lengths)
                self._ragged[slot.name] = Ragged(lengths)
        self._ids = self._sample_ids()

    def _check_lengths(self, slot: str, lengths: NDArray[Any]) -> None:
        """The samples must have as many keys as their blocks."""
        rows = self._table.num_rows[self.window.blocks]
        found = np.add.reduceat(lengths, np.cumsum(rows) - rows, dtype=np.int64).tolist()
        runs = self._key_runs[slot]
        for block, run, count in zip(self._in_shard, runs, found, strict=True):
            if count != run.last - run.first:
                raise UserError(
                    f"{self._path(run.shard)}: block {block} of slot {slot!r} has "
                    f"{run.last - run.first} keys, but its samples {count}: the shard is damaged; "
                    "prepare the dataset again"
                )

    def _path(self, shard: int) -> Path:
        return self._storage.shard(shard).path

    def _sample_ids(self) -> Int64s:
        counts = self._table.num_rows[self.window.blocks]
        shift = self._table.first_row[self.window.blocks] - (np.cumsum(counts) - counts)
        ids: Int64s = np.repeat(shift, counts)
        ids += np.arange(self.window.num_rows)
        return ids

    def rows(self) -> Rows:
        """All rows as they are, without a copy; the stage must be finished."""
        slots = {}
        for slot in self._wanted.slots:
            offsets = self._ragged[slot.name].offsets() if slot.lengths else None
            weights = self._columns[slot.weights.path] if slot.weights else None
            slots[slot.name] = Keys(self._columns[slot.keys.path], offsets, weights)
        single = {use: self._columns[column.path] for use, column in self._wanted.single.items()}
        return Rows(slots, **single, sample_ids=self._ids)

    def pick(self, rows: Int64s, memory: Recycler) -> Rows:
        """Copies of the given rows, in that order; the stage must be finished."""
        assert self._ids is not None
        picked = {name: ragged.pick(rows) for name, ragged in self._ragged.items()}
        num_bytes = 0
        for column in self._wanted.given:
            items = len(rows) if column.per == "row" else picked[column.slot].num_keys
            num_bytes += padded(items * column.item_bytes)
        arena = memory.arena(num_bytes)
        single = {
            use: self._take(column, rows, arena) for use, column in self._wanted.single.items()
        }
        slots = {}
        for slot in self._wanted.slots:
            if slot.lengths is None:
                slots[slot.name] = Keys(self._take(slot.keys, rows, arena))
                continue
            chosen = picked[slot.name]
            keys = self._take_keys(slot.keys, chosen, arena)
            weights = self._take_keys(slot.weights, chosen, arena) if slot.weights else None
            slots[slot.name] = Keys(keys, chosen.offsets, weights)
        return Rows(slots, **single, sample_ids=self._ids[rows])

    def _take_keys(self, column: Column, picked: PickedKeys, arena: Arena) -> NDArray[Any]:
        out = arena.empty((picked.num_keys,), column.dtype)
        return picked.take(self._columns[column.path], out)

    def _take(self, column: Column, rows: Int64s, arena: Arena) -> NDArray[Any]:
        out = arena.empty(column.shape(len(rows)), column.dtype)
        # mode="clip" lets numpy write into `out` directly; rows are in range by construction
        return np.take(self._columns[column.path], rows, 0, out, mode="clip")
