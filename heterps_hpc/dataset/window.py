"""Loads the wanted columns and rows of one window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset import shardfile
from heterps_hpc.dataset.columns import Keys, Rows, gather_ragged, offsets_of
from heterps_hpc.dataset.dataset import Dataset
from heterps_hpc.dataset.manifest import SlotSpec
from heterps_hpc.dataset.order import BlockTable, Window
from heterps_hpc.dataset.recycler import Recycler
from heterps_hpc.dataset.storage import ShardFile, Storage
from heterps_hpc.errors import UserError
from heterps_hpc.values import nearest

Int64s = NDArray[np.int64]
_WINDOWS_IN_USE = 4  # being made, being cut up, and those whose batches are in use

Run = tuple[ShardFile, int, int, int]


@dataclass(frozen=True)
class Want:
    """The columns that a rank needs; it reads no others."""

    slots: tuple[str, ...] = ()
    dense: bool = False
    labels: bool = False
    weight: bool = False
    group: bool = False

    def check(self, dataset: Dataset) -> None:
        """UserError if the dataset does not have them."""
        manifest = dataset.manifest
        known = [slot.name for slot in manifest.slots]
        for name in self.slots:
            if name not in known:
                raise UserError(f"{dataset.path}: no slot {name!r}; {nearest(name, known)}")
        for wanted, there, what in (
            (self.dense, bool(manifest.dense_columns), "dense columns"),
            (self.labels, bool(manifest.labels), "labels"),
            (self.weight, manifest.has_weight, "sample weight"),
            (self.group, manifest.has_group, "group id"),
        ):
            if wanted and not there:
                raise UserError(f"{dataset.path}: it has no {what}, but the reader asks for them")


class WindowLoader:
    """Reads windows; it keeps the buffers that it reads into, so memory does not grow."""

    def __init__(self, dataset: Dataset, table: BlockTable, want: Want) -> None:
        want.check(dataset)
        manifest = dataset.manifest
        self._table = table
        self._block_rows = manifest.block_rows
        self._slots = [manifest.slot(name) for name in want.slots]
        self._single: dict[str, shardfile.Column] = {}
        if want.dense:
            self._single["dense"] = shardfile.dense_column(manifest)
        if want.labels:
            self._single["labels"] = shardfile.labels_column(manifest)
        if want.weight:
            self._single["weight"] = shardfile.WEIGHT
        if want.group:
            self._single["group"] = shardfile.GROUP
        columns = list(self._single.values())
        for slot in self._slots:
            columns.extend(_slot_columns(slot))
        self._storage = Storage(dataset, columns)
        self._recycler = Recycler(limit=_WINDOWS_IN_USE * (len(columns) + 1))
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def open(self, window: Window) -> None:
        """Open the window's shards, and so compare them with the manifest."""
        for number in np.unique(self._table.shard[window.blocks]).tolist():
            self._storage.shard(number)

    def load(self, window: Window, picks: Int64s | None) -> Rows:
        """The picked rows of the window's blocks (None: all as they are), in that order."""
        shards = [self._storage.shard(int(self._table.shard[block])) for block in window.blocks]
        runs = self._runs(window, shards)
        single = {
            name: self._load_rows(column, runs, window.num_rows, picks)
            for name, column in self._single.items()
        }
        slots = {}
        for slot in self._slots:
            if slot.kind == "one":
                column = _slot_columns(slot)[0]
                slots[slot.name] = Keys(self._load_rows(column, runs, window.num_rows, picks))
            else:
                slots[slot.name] = self._load_many(slot, window, shards, runs, picks)
        return Rows(slots, **single, sample_ids=self._sample_ids(window, picks))

    def _sample_ids(self, window: Window, picks: Int64s | None) -> Int64s:
        counts = self._table.num_rows[window.blocks]
        shift = self._table.first_row[window.blocks] - (np.cumsum(counts) - counts)
        ids = np.repeat(shift, counts)
        ids += np.arange(window.num_rows)
        return ids if picks is None else ids[picks]

    def _runs(self, window: Window, shards: list[ShardFile]) -> list[Run]:
        """Rows to read (shard, first, last) and their place; neighbouring blocks as one."""
        runs: list[Run] = []
        place = 0
        for block, shard in zip(window.blocks.tolist(), shards, strict=True):
            first = int(self._table.in_shard[block]) * self._block_rows
            last = first + int(self._table.num_rows[block])
            if runs and runs[-1][0] is shard and runs[-1][2] == first:
                runs[-1] = (shard, runs[-1][1], last, runs[-1][3])
            else:
                runs.append((shard, first, last, place))
            place += last - first
        return runs

    def _load_rows(
        self, column: shardfile.Column, runs: list[Run], num_rows: int, picks: Int64s | None
    ) -> NDArray[Any]:
        if picks is None:
            out = self._recycler.empty(column.shape(num_rows), column.dtype)
            _read_rows(column, runs, out)
            return out
        staged = self._buffer("rows", column, num_rows)
        _read_rows(column, runs, staged)
        out = self._recycler.empty(column.shape(len(picks)), column.dtype)
        # mode="clip" lets numpy write into `out` directly; picks are in range by construction
        np.take(staged, picks, axis=0, out=out, mode="clip")
        return out

    def _load_many(
        self,
        slot: SlotSpec,
        window: Window,
        shards: list[ShardFile],
        runs: list[Run],
        picks: Int64s | None,
    ) -> Keys:
        keys, lengths, *weights = _slot_columns(slot)
        counts = self._buffer("lengths", lengths, window.num_rows)
        _read_rows(lengths, runs, counts)
        self._check_lengths(slot, window, shards, counts)
        if picks is None:
            return Keys(
                self._read_keys(keys, slot.name, window, shards, None),
                offsets_of(counts),
                *(self._read_keys(c, slot.name, window, shards, None) for c in weights),
            )
        offsets, places = gather_ragged(counts, picks)
        return Keys(
            self._read_keys(keys, slot.name, window, shards, places),
            offsets,
            *(self._read_keys(c, slot.name, window, shards, places) for c in weights),
        )

    def _check_lengths(
        self, slot: SlotSpec, window: Window, shards: list[ShardFile], counts: NDArray[Any]
    ) -> None:
        """The numbers of keys must be those that the blocks have."""
        rows = self._table.num_rows[window.blocks]
        found = np.add.reduceat(counts, np.cumsum(rows) - rows, dtype=np.int64)
        for place, block in enumerate(window.blocks.tolist()):
            number = int(self._table.in_shard[block])
            first, last = shards[place].starts[slot.name][number : number + 2].tolist()
            if found[place] != last - first:
                raise UserError(
                    f"{shards[place].path}: block {number} of slot {slot.name!r} has "
                    f"{last - first} keys, but its samples {found[place]}: the shard is damaged; "
                    "prepare the dataset again"
                )

    def _read_keys(
        self,
        column: shardfile.Column,
        slot: str,
        window: Window,
        shards: list[ShardFile],
        places: Int64s | None,
    ) -> NDArray[Any]:
        ranges = []
        for block, shard in zip(window.blocks.tolist(), shards, strict=True):
            number = int(self._table.in_shard[block])
            first, last = shard.starts[slot][number : number + 2].tolist()
            ranges.append((shard, first, last))
        total = sum(last - first for _, first, last in ranges)
        if places is None:
            staged = self._recycler.empty((total,), column.dtype)
        else:
            staged = self._buffer("keys", column, total)
        done = 0
        for shard, first, last in ranges:
            shard.read(column, first, last, staged[done : done + last - first])
            done += last - first
        if places is None:
            return staged
        out = self._recycler.empty((len(places),), column.dtype)
        return np.take(staged, places, out=out, mode="clip")

    def _buffer(self, use: str, column: shardfile.Column, length: int) -> NDArray[Any]:
        num_bytes = length * column.item_bytes
        buffer = self._buffers.get(use)
        if buffer is None or len(buffer) < num_bytes:
            buffer = self._buffers[use] = np.empty(num_bytes, np.uint8)
        return buffer[:num_bytes].view(column.dtype).reshape(column.shape(length))

    def close(self) -> None:
        """Close the shards and drop the buffers."""
        self._storage.close()
        self._buffers.clear()


def _read_rows(column: shardfile.Column, runs: list[Run], out: NDArray[Any]) -> None:
    for shard, first, last, place in runs:
        shard.read(column, first, last, out[place : place + last - first])


def _slot_columns(slot: SlotSpec) -> list[shardfile.Column]:
    columns = [shardfile.keys_column(slot.name, slot.kind)]
    if slot.kind == "many":
        columns.append(shardfile.lengths_column(slot.name))
    if slot.weighted:
        columns.append(shardfile.weights_column(slot.name))
    return columns
