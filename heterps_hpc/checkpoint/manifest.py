"""What a checkpoint says of itself: which arrays lie where in which file, and their checksums.

Shards are HDF5, for anyone's tools; this package itself never parses them. It reads by the
offsets listed here, which were checked against the size of the file, so that a damaged or hostile
file can neither crash a parser nor make anyone allocate more than the file really holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import xxhash
from pydantic import Field, field_validator, model_validator

from heterps_hpc.errors import UserError
from heterps_hpc.rundir import MANIFEST_FILE as MANIFEST_FILE
from heterps_hpc.validation import Value

FORMAT: Literal["heterps-checkpoint"] = "heterps-checkpoint"
VERSION: Literal[2] = 2
MAX_MANIFEST_BYTES = 1 << 28  # a hostile manifest must not fill the memory before it is checked

NotNegative = Annotated[int, Field(ge=0, lt=1 << 62)]
Dtype = Literal["uint8", "uint16", "uint32", "uint64", "int64", "float32", "float64"]
Kind = Literal["table", "dense", "ahead", "progress"]


class Segment(NamedTuple):
    """Some rows of an array that are read and checked together: those of one partition."""

    partition: NotNegative
    first_row: NotNegative
    num_rows: NotNegative
    checksum: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # XXH3, 64 bits


class ArraySpec(Value):
    """One array of a shard.

    kind table: `name` is the table, `column` one of keys, vectors, state, step, show, click, or
        what else the table needs (extra.…); segments are partitions.
    kind dense: `name` is LAYER.PARAMETER, `column` is value or a part of the optimizer's state.
    kind ahead: `name` is the step, `column` the look-up: rows that were pooled before the save
        for a batch after it, and its keys that were not admitted (absent) then; `partitions`
        are those of the table that the rank held.
    kind progress: losses so far.
    """

    kind: Kind
    name: Annotated[str, Field(min_length=1, max_length=1000)]
    column: Annotated[str, Field(min_length=1, max_length=4000)]
    dtype: Dtype
    shape: tuple[NotNegative, ...]
    offset: NotNegative
    segments: tuple[Segment, ...]
    partitions: tuple[NotNegative, ...] | None = None

    @model_validator(mode="after")
    def _segments_fit(self) -> Self:
        if not 1 <= len(self.shape) <= 8:
            raise ValueError(f"array {self.label} has {len(self.shape)} axes; 1 to 8 are known")
        rows = 0
        for segment in self.segments:
            if segment.first_row != rows:
                raise ValueError(f"array {self.label}: a segment starts at row {segment.first_row}")
            rows += segment.num_rows
        if rows and not self.row_bytes:
            raise ValueError(f"array {self.label} has {rows} rows of no bytes")
        if rows != self.shape[0]:
            raise ValueError(
                f"array {self.label} has {self.shape[0]} rows, its segments have {rows}"
            )
        return self

    @property
    def label(self) -> str:
        """Its name, for people."""
        return f"{self.kind} {self.name} {self.column}"

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        size = np.dtype(self.dtype).itemsize
        for width in self.shape[1:]:
            size *= width
        return size

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole array."""
        return self.row_bytes * self.shape[0]


class ShardSpec(Value):
    """One HDF5 file; `structure` is the checksum of all its bytes outside of arrays."""

    file: Annotated[str, Field(min_length=1, max_length=255)]
    rank: NotNegative
    host: str
    num_bytes: NotNegative
    structure: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    arrays: tuple[ArraySpec, ...]

    @field_validator("file")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if "/" in value or "\0" in value or value in (".", ".."):
            raise ValueError(f"shard file {value!r} must be a plain name in the checkpoint")
        return value

    @model_validator(mode="after")
    def _arrays_fit(self) -> Self:
        end, before = 0, "the start"
        for array in self.stored():
            if array.offset < end:
                raise ValueError(f"{self.file}: array {array.label} overlaps {before}")
            end, before = array.offset + array.num_bytes, array.label
        if end > self.num_bytes:
            raise ValueError(
                f"{self.file}: array {before} ends at byte {end}, the file at {self.num_bytes}"
            )
        return self

    def stored(self) -> list[ArraySpec]:
        """The arrays that have bytes, in the order of the file."""
        return sorted((a for a in self.arrays if a.num_bytes), key=lambda array: array.offset)

    def gaps(self) -> Iterator[tuple[int, int]]:
        """The ranges of bytes outside of all arrays: HDF5's own structures."""
        end = 0
        for array in self.stored():
            if array.offset > end:
                yield end, array.offset
            end = array.offset + array.num_bytes
        if end < self.num_bytes:
            yield end, self.num_bytes


class RowFormat(Value):
    """What a table's rows look like."""

    dim: NotNegative
    state_dim: NotNegative
    dtype: Literal["float32", "float64"]
    optimizer: str


class Manifest(Value):
    """The file that makes a directory of shards a checkpoint; it is written last."""

    format: Literal["heterps-checkpoint"] = FORMAT
    version: Literal[2] = VERSION
    job: str
    step: NotNegative  # steps done; the next batch to train on
    saved_at: float
    model: str
    model_fingerprint: str
    data_fingerprint: str
    data_schema: dict[str, Any] | None = None  # of the training data; None: not kept (version 1)
    num_partitions: Annotated[int, Field(gt=0, le=1 << 16)]  # as many as a table can have
    must_match: dict[str, Any]  # settings under which a resumed run is the uninterrupted one
    tables: dict[str, RowFormat]
    shards: tuple[ShardSpec, ...]
    key_recipe: dict[str, Any] | None = None  # how raw values became keys, for scoring raw rows

    @model_validator(mode="after")
    def _distinct_files(self) -> Self:
        files = [shard.file for shard in self.shards]
        if len(set(files)) != len(files):
            raise ValueError("two shards have the same file")
        return self

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.num_bytes for shard in self.shards)

    def num_rows(self, table: str) -> int:
        """Rows of a table, over all shards."""
        return sum(
            array.shape[0]
            for shard in self.shards
            for array in shard.arrays
            if (array.kind, array.name, array.column) == ("table", table, "keys")
        )

    def to_json(self) -> str:
        """The text of the file: everything, and a checksum of it."""
        data = self.model_dump(mode="json")
        text = json.dumps({**data, "checksum": content_checksum(data)}, indent=2) + "\n"
        if len(text) > MAX_MANIFEST_BYTES:  # as many bytes: it is ASCII
            raise UserError(
                f"the manifest of step {self.step} would have {len(text):,} bytes, more than the "
                f"{MAX_MANIFEST_BYTES:,} that are ever loaded; use fewer partitions "
                "(train.tables.num_partitions)"
            )
        return text

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a manifest, of this version or an older one."""
        path = Path(path)
        return cls.parse(_upgraded(_read_json(path), path), str(path))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise UserError(f"{path}: larger than any manifest; this is not a checkpoint of ours")
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path.parent}: no {path.name}, so this is not a complete checkpoint; "
            "`heterps checkpoint ls RUN` lists those that are"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged manifest: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot read the manifest: {error.strerror}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UserError(f"{path}: not the manifest of a checkpoint (format {FORMAT!r})")
    return data


def _upgraded(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """The same content in today's form. A later version adds its step here, and a file of each
    version to the tests."""
    version = data.get("version")
    if version == 1:  # it had no checksum, and the data's schema was not kept
        return {**data, "version": VERSION}
    if version != VERSION:
        raise UserError(
            f"{path}: checkpoint format version {version!r}; this program reads versions 1 to "
            f"{VERSION}: use a newer heterps_hpc"
        )
    content = {name: value for name, value in data.items() if name != "checksum"}
    if data.get("checksum") != content_checksum(content):
        raise UserError(
            f"{path}: damaged manifest: its checksum is not that of its content; use another "
            "checkpoint (`heterps checkpoint ls RUN` lists them)"
        )
    return content


def content_checksum(data: dict[str, Any]) -> str:
    """Of the content, however it is laid out in the file."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(text.encode())
