"""Opens a dataset, refuses one whose manifest and shards disagree, and finds selected columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset import shard_schema
from heterps_hpc.dataset.manifest import (
    KEY_SAMPLE_SIZE,
    MANIFEST_FILE,
    DatasetManifest,
    FileSpec,
    file_checksum,
)
from heterps_hpc.dataset.shard_schema import Column
from heterps_hpc.errors import UserError
from heterps_hpc.validation import nearest

Verify = Literal["sizes", "checksums"]


class Dataset:
    """A click log on disk. It holds no open file, so it may cross a fork or be pickled."""

    def __init__(self, path: Path, manifest: DatasetManifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, path: Path | str, verify: Verify = "sizes") -> Dataset:
        """Read the manifest and compare the shards with it: sizes (cheap), or every byte."""
        path = Path(path)
        if not path.is_dir():
            what = "a file" if path.is_file() else f"no such {'file' if path.suffix else 'dataset'}"
            raise UserError(f"{path}: {what}; a dataset is a directory made by `heterps prepare`")
        if not (path / MANIFEST_FILE).exists():
            inside = sorted(str(each.parent) for each in path.glob(f"*/{MANIFEST_FILE}"))
            if inside:
                raise UserError(
                    f"{path}: not a dataset but a folder of some; give {inside[0]}"
                    + (f" or {inside[1]}" if len(inside) > 1 else "")
                )
            raise UserError(
                f"{path}: no {MANIFEST_FILE}; if the preparation did not finish, run it again, it "
                "continues where it stopped; else it is not a dataset"
            )
        dataset = cls(path, DatasetManifest.load(path / MANIFEST_FILE))
        dataset.check(verify)
        return dataset

    def check(self, verify: Verify) -> None:
        """UserError that names the first file which is not what the manifest says."""
        if verify not in ("sizes", "checksums"):
            raise UserError(f"verify is {verify!r}; choose 'sizes' or 'checksums'")
        for spec in (*self.manifest.shards, self.manifest.key_samples):
            self._check_file(spec, verify)

    def _check_file(self, spec: FileSpec, verify: Verify) -> None:
        path = self.path / spec.file
        remedy = "prepare the dataset again, or copy that file again"
        try:
            num_bytes = path.stat().st_size
        except FileNotFoundError:
            raise UserError(f"{path}: missing, but the manifest lists it; {remedy}") from None
        if num_bytes != spec.num_bytes:
            raise UserError(
                f"{path}: {num_bytes} bytes, but the manifest says {spec.num_bytes}; {remedy}"
            )
        if verify == "checksums":
            checksum = file_checksum(path)
            if checksum != spec.checksum:
                raise UserError(
                    f"{path}: its checksum is {checksum}, but the manifest says {spec.checksum}: "
                    f"the file has changed; {remedy}"
                )

    def key_sample(self, slot: str) -> NDArray[np.uint64]:
        """Up to 65,536 keys drawn uniformly over the slot's occurrences."""
        names = [spec.name for spec in self.manifest.slots]
        if slot not in names:
            raise UserError(f"{self.path}: no slot {slot!r}; {nearest(slot, names)}")
        path = self.path / self.manifest.key_samples.file
        try:
            with h5py.File(path, "r", locking=False) as file:
                sample: NDArray[np.uint64] = file[slot][:KEY_SAMPLE_SIZE].astype(np.uint64)
                return sample
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise UserError(f"{path}: damaged: {error}; prepare the dataset again") from error

    def ids(self, first: int = 0, last: int | None = None) -> NDArray[np.object_] | None:
        """The texts by which the user knows the rows first .. last - 1; None if they have none."""
        if self.manifest.id_column is None:
            return None
        last = self.manifest.num_rows if last is None else last
        found, begin = [], 0
        for shard in self.manifest.shards:
            low, high = max(first - begin, 0), min(last - begin, shard.num_rows)
            begin += shard.num_rows
            if low < high:
                found.append(self._shard_ids(self.path / shard.file, low, high))
        return np.concatenate(found) if found else np.empty(0, np.object_)

    def _shard_ids(self, path: Path, low: int, high: int) -> NDArray[np.object_]:
        try:
            with h5py.File(path, "r", locking=False) as file:
                texts: NDArray[np.object_] = file[shard_schema.IDS].asstr()[low:high]
                return texts
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise UserError(f"{path}: damaged: {error}; prepare the dataset again") from error


@dataclass(frozen=True)
class ColumnSelection:
    """The columns that a rank needs; it reads no others."""

    slots: tuple[str, ...] = ()
    dense: bool = False
    labels: bool | str = False  # all of them, or the one of that name
    weight: bool = False
    group: bool = False

    def check(self, dataset: Dataset) -> None:
        """UserError if the dataset does not have them."""
        manifest = dataset.manifest
        known = [slot.name for slot in manifest.slots]
        for name in self.slots:
            if name not in known:
                raise UserError(f"{dataset.path}: no slot {name!r}; {nearest(name, known)}")
        if isinstance(self.labels, str) and self.labels not in manifest.labels:
            remedy = nearest(self.labels, list(manifest.labels))
            raise UserError(f"{dataset.path}: no label {self.labels!r}; {remedy}")
        for wanted, there, what in (
            (self.dense, bool(manifest.dense_columns), "dense columns"),
            (bool(self.labels), bool(manifest.labels), "labels"),
            (self.weight, manifest.has_weight, "sample weight"),
            (self.group, manifest.has_group, "group id"),
        ):
            if wanted and not there:
                raise UserError(f"{dataset.path}: it has no {what}, but the reader asks for them")


@dataclass(frozen=True)
class ManyColumns:
    """Where a slot of many keys per sample is: the keys, their numbers and, maybe, weights."""

    name: str
    keys: Column
    lengths: Column
    weights: Column | None


@dataclass(frozen=True)
class SelectedColumns:
    """The columns of a selection, by the way in which they are read."""

    single: dict[str, Column]
    one: dict[str, Column]
    many: tuple[ManyColumns, ...]
    only_label: int | None = None  # the place of the one label that is wanted

    @classmethod
    def of(cls, dataset: Dataset, selection: ColumnSelection) -> SelectedColumns:
        """What a selection means in a dataset; UserError where the dataset does not have it."""
        selection.check(dataset)
        manifest = dataset.manifest
        single = {
            "dense": (selection.dense, shard_schema.dense_column(manifest)),
            "labels": (bool(selection.labels), shard_schema.labels_column(manifest)),
            "weight": (selection.weight, shard_schema.WEIGHT),
            "group": (selection.group, shard_schema.GROUP),
        }
        slots = [manifest.slot(name) for name in dict.fromkeys(selection.slots)]
        return cls(
            {use: column for use, (selected, column) in single.items() if selected},
            {s.name: shard_schema.keys_column(s.name, s.kind) for s in slots if s.kind == "one"},
            tuple(
                ManyColumns(
                    slot.name,
                    shard_schema.keys_column(slot.name, slot.kind),
                    shard_schema.lengths_column(slot.name),
                    shard_schema.weights_column(slot.name) if slot.weighted else None,
                )
                for slot in slots
                if slot.kind == "many"
            ),
            manifest.labels.index(selection.labels) if isinstance(selection.labels, str) else None,
        )

    @cached_property
    def columns(self) -> list[Column]:
        """All of them."""
        return [*self.various, *self.one.values(), *self.by_key]

    @cached_property
    def various(self) -> list[Column]:
        """Those with one item per row that are not keys."""
        return [*self.single.values(), *(slot.lengths for slot in self.many)]

    @cached_property
    def by_key(self) -> list[Column]:
        """Those of slots with many keys."""
        groups = [(slot.keys, slot.weights) for slot in self.many]
        return [column for group in groups for column in group if column]
