"""Loads windows: which columns a rank wants, and the memory that they go through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from heterps_hpc.dataset import shard_schema
from heterps_hpc.dataset.columns import Int64s
from heterps_hpc.dataset.read.buffer_pool import Recycler
from heterps_hpc.dataset.read.dataset import Dataset
from heterps_hpc.dataset.read.loaded import LoadedWindow, Memory, Wanted, announce
from heterps_hpc.dataset.read.order import BlockTable, Window
from heterps_hpc.dataset.read.storage import Storage
from heterps_hpc.errors import UserError
from heterps_hpc.validation import nearest

# being made, being handed over, and what a consumer with batches in flight holds on to
_BATCHES_IN_USE = 8
_STAGES_IN_USE = 4


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
    """Reads windows and picks rows from them; memory is used again, so it does not grow."""

    def __init__(self, dataset: Dataset, table: BlockTable, want: Want, read_ahead: int) -> None:
        want.check(dataset)
        manifest = dataset.manifest
        columns = {
            "dense": (want.dense, shard_schema.dense_column(manifest)),
            "labels": (want.labels, shard_schema.labels_column(manifest)),
            "weight": (want.weight, shard_schema.WEIGHT),
            "group": (want.group, shard_schema.GROUP),
        }
        self._wanted = Wanted.of(
            {use: column for use, (wanted, column) in columns.items() if wanted},
            [manifest.slot(name) for name in dict.fromkeys(want.slots)],
        )
        self._table = table
        self._storage = Storage(dataset, self._wanted.columns)
        in_use = read_ahead + _BATCHES_IN_USE
        self._memory = Memory(Recycler(in_use), Recycler(_STAGES_IN_USE), Recycler(in_use))

    def open(self, window: Window) -> None:
        """Open the window's shards, and so compare them with the manifest."""
        for number in sorted(set(self._table.shard[window.blocks].tolist())):
            self._storage.shard(number)

    def load(self, window: Window, rows: Int64s | None) -> LoadedWindow:
        """Read a window for batches that want these of its rows, in that order (None: all)."""
        return LoadedWindow(window, rows, self._table, self._storage, self._wanted, self._memory)

    def announce(self, window: Window) -> Iterator[None]:
        """Each step lets the system read another block of a window that will be wanted soon."""
        return announce(window, self._table, self._storage, self._wanted)

    def close(self) -> None:
        """Close the shards."""
        self._storage.close()
