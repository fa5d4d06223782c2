"""Manifest of a dataset: its columns, its shards and how it was made."""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

import xxhash
from pydantic import Field, field_validator, model_validator

from heterps_hpc.errors import UserError
from heterps_hpc.validation import Value, nearest

FORMAT: Literal["heterps-click-log"] = "heterps-click-log"
VERSION: Literal[1] = 1
MANIFEST_FILE = "manifest.json"
KEY_SAMPLE_FILE = "key_samples.h5"
KEY_SAMPLE_SIZE = 65_536
EXACT_KEYS = 4096  # up to so many distinct keys of a slot are counted exactly

_MAX_ROWS_PER_BYTE = 1024

Compression = Literal["none", "lzf", "lz4", "zstd"]


class SlotSpec(Value):
    """One categorical feature. Cardinality and mean keys are observed when the data is written."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    kind: Literal["one", "many"] = "one"
    weighted: bool = False
    cardinality: Annotated[int, Field(ge=0)] = 0
    mean_keys: Annotated[float, Field(ge=0)] = 1.0
    sampled_keys: Annotated[int, Field(ge=0)] = 0  # distinct ones in the key sample
    missing_rate: Annotated[float, Field(ge=0, le=1)] | None = None  # samples without a key

    @field_validator("name")
    @classmethod
    def _safe(cls, value: str) -> str:
        if not value.isprintable() or "/" in value or value in (".", ".."):
            raise ValueError(f"slot name {value!r} must be printable, without '/', and not '.'")
        return value

    @model_validator(mode="after")
    def _weights_need_many(self) -> Self:
        if self.weighted and self.kind == "one":
            raise ValueError(f"slot {self.name!r}: only a slot of kind 'many' has key weights")
        return self


class Schema(Value):
    """The columns of a click log."""

    slots: tuple[SlotSpec, ...]
    dense_columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ("label",)
    has_weight: bool = False
    has_group: bool = False
    id_column: str | None = None  # which column of the input names a row; models do not see it

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        for what, names in (
            ("slot", [slot.name for slot in self.slots]),
            ("dense column", list(self.dense_columns)),
            ("label", list(self.labels)),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} names appear twice: {', '.join(twice)}")
        return self


class FileSpec(Value):
    """A file of the dataset, and what its bytes must add up to (XXH3, 128 bits)."""

    file: str
    num_bytes: Annotated[int, Field(ge=0, lt=2**63)]
    checksum: str

    @field_validator("file")
    @classmethod
    def _next_to_the_manifest(cls, value: str) -> str:
        if value != PurePath(value).name or not value.endswith(".h5"):
            raise ValueError(
                f"file name {value[:80]!r} must be that of an .h5 file, without a path"
            )
        return value


class DatasetShard(FileSpec):
    """One HDF5 file of rows. `content` hashes the columns themselves, whatever the compression."""

    num_rows: Annotated[int, Field(gt=0)]
    content: str

    @model_validator(mode="after")
    def _plausible(self) -> Self:
        # a wrong number is refused here, not by running out of memory
        if self.num_rows > _MAX_ROWS_PER_BYTE * self.num_bytes:
            raise ValueError(f"{self.file}: {self.num_rows} rows in {self.num_bytes} bytes")
        return self


class DatasetManifest(Schema):
    """The file that makes a directory of shards a dataset; it is written last."""

    format: Literal["heterps-click-log"] = FORMAT
    version: Literal[1] = VERSION
    name: str
    block_rows: Annotated[int, Field(gt=0, le=1 << 24)]
    compression: Compression = "none"
    num_rows: int
    raw_bytes: int
    label_means: tuple[float, ...]
    label_ranges: tuple[tuple[float, float], ...] | None = None  # smallest and largest
    shards: tuple[DatasetShard, ...]
    key_samples: FileSpec
    made: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _rows_add_up(self) -> Self:
        total = sum(shard.num_rows for shard in self.shards)
        if total != self.num_rows:
            raise ValueError(f"num_rows is {self.num_rows}, but the shards hold {total}")
        for what, found in (
            ("label_means", self.label_means),
            ("label_ranges", self.label_means if self.label_ranges is None else self.label_ranges),
        ):
            if len(found) != len(self.labels):
                raise ValueError(f"{len(found)} {what} for {len(self.labels)} labels")
        return self

    def inputs(self) -> dict[str, Any]:
        """What scoring of raw rows must know: the columns, and how their keys were made.

        It travels in checkpoints and exports, so that they can be used without the data.
        """
        return {"schema": self.schema_only().model_dump(mode="json"), **self.key_recipe()}

    def key_recipe(self) -> dict[str, Any]:
        """How raw values became keys."""
        options = self.made.get("options", {})
        # sources of their own (Criteo, MovieLens) do more than a recipe can say
        from_recipe = self.made.get("by") == "data_prep.table"
        return {
            "recipe": self.made.get("recipe") if from_recipe else None,
            "max_keys": options.get("max_keys"),
            "has_rare": int(options.get("min_count") or 1) > 1,
        }

    def learning(self, label: str | None) -> Self:
        """The same with that label first, for building a model; None: as it is."""
        if label is None:
            return self
        if label not in self.labels:
            raise UserError(f"data.label: no label {label!r}; {nearest(label, list(self.labels))}")
        place = self.labels.index(label)
        first = [place, *(other for other in range(len(self.labels)) if other != place)]
        ranges = self.label_ranges
        return self.model_copy(
            update={
                "labels": tuple(self.labels[i] for i in first),
                "label_means": tuple(self.label_means[i] for i in first),
                "label_ranges": None if ranges is None else tuple(ranges[i] for i in first),
            }
        )

    def check_labels(self, low: float, high: float, where: str) -> None:
        """UserError unless the first label, which models learn, lies between the two."""
        if not self.labels:
            return
        mean = self.label_means[0]  # all that older datasets know of their labels
        least, largest = (mean, mean) if self.label_ranges is None else self.label_ranges[0]
        if not low <= least <= largest <= high:
            raise UserError(
                f"{where}: label {self.labels[0]!r} goes from {least:g} to {largest:g}, but the "
                f"loss needs {low:g} to {high:g}; prepare the data again with a recipe that maps "
                "it (`positive: [..]` or `at_least: ..`)"
            )

    def slot(self, name: str) -> SlotSpec:
        """The slot of that name."""
        for slot in self.slots:
            if slot.name == name:
                return slot
        raise KeyError(name)

    @property
    def num_stored_bytes(self) -> int:
        """Bytes of all shards on disk."""
        return sum(shard.num_bytes for shard in self.shards)

    def schema_only(self) -> Schema:
        """What the columns are, without the files that hold them."""
        return Schema.model_validate({key: getattr(self, key) for key in Schema.model_fields})

    def fingerprint(self) -> str:
        """A hash of the content and its order; the name, the file names and the compression
        do not matter."""
        schema = self.schema_only()
        identity = {
            "version": self.version,
            "schema": schema.model_dump(
                mode="json",
                exclude={
                    "slots": {"__all__": {"sampled_keys", "missing_rate"}},
                    "id_column": True,  # nothing is learned from it
                },
            ),
            "block_rows": self.block_rows,
            "shards": [[shard.num_rows, shard.content] for shard in self.shards],
        }
        return xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())


def file_checksum(path: Path) -> str:
    """XXH3-128 of a file's bytes."""
    state = xxhash.xxh3_128()
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(view[:count])
    return state.hexdigest()
