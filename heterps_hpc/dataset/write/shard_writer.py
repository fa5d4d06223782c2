"""Writes one shard: whole and named at the end, or not there at all.

HDF5 never sees a failed write (see `Sink`): it could not close its file any more and would bring
the whole process down at exit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
import xxhash
from numpy.typing import NDArray

from heterps_hpc.counter_rng import random_bits, seed_of
from heterps_hpc.dataset import shard_schema
from heterps_hpc.dataset.columns import Keys, SampleRows, check_rows
from heterps_hpc.dataset.manifest import (
    FORMAT,
    VERSION,
    Compression,
    DatasetShard,
    FileSpec,
    Schema,
)
from heterps_hpc.dataset.write.disk import Sink, disk_errors, settle
from heterps_hpc.dataset.write.sketch import Cardinality, KeySample
from heterps_hpc.errors import UserError

BLOCK_ROWS = 4096
_FLUSH_BLOCKS = 16


@dataclass(frozen=True)
class ShardOptions:
    """What all shards of a dataset have in common."""

    schema: Schema
    block_rows: int = BLOCK_ROWS
    compression: Compression = "none"
    seed: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)  # the key of no value, where known

    def __post_init__(self) -> None:
        if self.block_rows < 1:
            raise UserError(f"block_rows is {self.block_rows}; it must be at least 1")


@dataclass
class ShardStats:
    """What a shard adds to the manifest, besides its own entry."""

    cardinality: dict[str, Cardinality]
    samples: dict[str, KeySample]
    num_keys: dict[str, int]
    num_missing: dict[str, int]  # samples without a key, where that is known
    label_sums: NDArray[np.float64]
    label_min: NDArray[np.float64]
    label_max: NDArray[np.float64]
    raw_bytes: int = 0


class DatasetShardWriter:
    """Appends rows to one HDF5 file; memory is bounded by a few blocks."""

    def __init__(self, path: Path, number: int, options: ShardOptions) -> None:
        self.path = path
        self.options = options
        schema = options.schema
        self.stats = ShardStats(
            {slot.name: Cardinality() for slot in schema.slots},
            {
                slot.name: KeySample(seed_of(options.seed, place, number))
                for place, slot in enumerate(schema.slots)
            },
            {slot.name: 0 for slot in schema.slots},
            {
                slot.name: 0
                for slot in schema.slots
                if slot.kind == "many" or slot.name in options.missing
            },
            np.zeros(len(schema.labels)),
            np.full(len(schema.labels), np.inf),
            np.full(len(schema.labels), -np.inf),
        )
        self.num_rows = 0
        self._rows_written = 0
        self._row_seed = seed_of(options.seed, number)
        self._pending: list[SampleRows] = []
        self._pending_rows = 0
        self._columns = list(shard_schema.columns_of(schema))
        self._hashes = {column.path: xxhash.xxh3_128() for column in self._columns}
        self._starts: dict[str, list[int]] = {
            slot.name: [0] for slot in schema.slots if slot.kind == "many"
        }
        self._partial = path.with_name(f".{path.name}.partial")
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = Sink(self._partial)
            self._file = h5py.File(
                self._sink,
                "w",
                libver=shard_schema.LIBVER,
                alignment_threshold=shard_schema.PAGE_BYTES,
                alignment_interval=shard_schema.PAGE_BYTES,
            )
            self._datasets = {column.path: self._create(column) for column in self._columns}
            if schema.id_column is not None:
                self._ids = self._file.create_dataset(
                    shard_schema.IDS,
                    shape=(0,),
                    maxshape=(None,),
                    chunks=(options.block_rows,),
                    dtype=h5py.string_dtype(),
                )

    def _create(self, column: shard_schema.Column) -> Any:
        return self._file.create_dataset(
            column.path,
            shape=column.shape(0),
            maxshape=(None, *column.shape(0)[1:]),
            chunks=column.shape(self.options.block_rows),
            dtype=column.dtype,
            **shard_schema.filter_options(self.options.compression),
        )

    def append(self, rows: SampleRows) -> None:
        """Add rows; they are written a few blocks later, so do not change their arrays any more."""
        rows = check_rows(rows, self.options.schema)
        if rows.num_rows == 0:
            return
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        self.num_rows += rows.num_rows
        if self._pending_rows >= _FLUSH_BLOCKS * self.options.block_rows:
            self._flush(keep=self._pending_rows % self.options.block_rows)

    def _flush(self, keep: int) -> None:
        """Write all pending rows but the last `keep`, which do not fill a block yet."""
        rows = SampleRows.join(self._pending)
        cut = rows.num_rows - keep
        self._pending = [rows.cut(cut, rows.num_rows)] if keep else []
        self._pending_rows = keep
        written = rows.cut(0, cut)
        with disk_errors(self.path):
            self._write(written)
            self._sink.check()

    def _write(self, rows: SampleRows) -> None:
        narrow: dict[str, NDArray[Any] | None] = {
            "labels": rows.labels,
            "dense": rows.dense,
            "weight": rows.weight,
            "group": rows.group,
        }
        for name, keys in rows.slots.items():
            if keys.offsets is None:
                narrow[f"slots/{name}/keys"] = keys.keys
            else:
                narrow[f"slots/{name}/lengths"] = np.diff(keys.offsets).astype(np.uint32)
        self._extend_rows({path: data for path, data in narrow.items() if data is not None})
        if rows.labels is not None:
            self._note_labels(rows.labels)
        if rows.ids is not None:
            self._ids.resize(self._rows_written + rows.num_rows, axis=0)
            self._ids[self._rows_written :] = rows.ids
        bits = random_bits(self._row_seed, self._rows_written, rows.num_rows)
        self._rows_written += rows.num_rows
        for name, keys in rows.slots.items():
            if keys.offsets is not None:
                self._extend(f"slots/{name}/keys", keys.keys)
                self._extend_starts(name, keys.offsets)
            if keys.weights is not None:
                self._extend(f"slots/{name}/weights", keys.weights)
            self.stats.cardinality[name].add(keys.keys)
            self.stats.samples[name].add(keys.keys, bits if keys.offsets is None else None)
            self.stats.num_keys[name] += len(keys.keys)
            if name in self.stats.num_missing:
                self.stats.num_missing[name] += self._count_missing(name, keys)

    def _count_missing(self, name: str, keys: Keys) -> int:
        if keys.offsets is not None:
            return int(np.count_nonzero(np.diff(keys.offsets) == 0))
        return int(np.count_nonzero(keys.keys == np.uint64(self.options.missing[name])))

    def _note_labels(self, labels: NDArray[np.float32]) -> None:
        stats = self.stats
        stats.label_sums += labels.sum(axis=0, dtype=np.float64)
        if len(labels):
            np.minimum(stats.label_min, labels.min(axis=0), out=stats.label_min)
            np.maximum(stats.label_max, labels.max(axis=0), out=stats.label_max)

    def _extend_rows(self, columns: dict[str, NDArray[Any]]) -> None:
        """Append to columns of one item per row, block by block: a reader that wants several of
        them finds their chunks next to each other."""
        if self.options.compression != "none":
            for path, data in columns.items():
                self._extend(path, data)
            return
        step, first = self.options.block_rows, self._rows_written
        for path, data in columns.items():
            self._datasets[path].resize(first + len(data), axis=0)
            self._note(path, data)
        num_rows = len(next(iter(columns.values()), ()))
        for low in range(0, num_rows, step):
            for path, data in columns.items():
                chunk = data[low : low + step]
                if len(chunk) < step:
                    chunk = np.concatenate([chunk, np.zeros_like(data, shape=_rest(chunk, step))])
                place = (first + low, *(0 for _ in data.shape[1:]))
                self._datasets[path].id.write_direct_chunk(place, chunk)

    def _extend(self, path: str, data: NDArray[Any]) -> None:
        dataset = self._datasets[path]
        old = dataset.shape[0]
        dataset.resize(old + len(data), axis=0)
        if len(data):
            dataset[old:] = data
        self._note(path, data)

    def _note(self, path: str, data: NDArray[Any]) -> None:
        self._hashes[path].update(np.ascontiguousarray(data).data)
        self.stats.raw_bytes += data.nbytes

    def _extend_starts(self, name: str, offsets: NDArray[np.int64]) -> None:
        step = self.options.block_rows
        ends = [*offsets[step::step].tolist()]
        if (len(offsets) - 1) % step:
            ends.append(int(offsets[-1]))
        starts = self._starts[name]
        base = starts[-1]
        starts.extend(base + int(end) for end in ends)

    def close(self) -> DatasetShard:
        """Finish, flush to disk and give the shard its name."""
        try:
            saved = self._finish()
        except BaseException:
            self.abort()  # HDF5 would write through the sink when Python has ended already
            raise
        content = xxhash.xxh3_128()
        for column in self._columns:
            content.update(column.path.encode() + b"\0" + self._hashes[column.path].digest())
        return DatasetShard(
            **saved.model_dump(), num_rows=self.num_rows, content=content.hexdigest()
        )

    def _finish(self) -> FileSpec:
        with disk_errors(self.path):
            if self._pending_rows:
                self._flush(keep=0)
            for name, starts in self._starts.items():
                self._file.create_dataset(
                    shard_schema.starts_path(name), data=np.array(starts, np.int64)
                )
            self._write_chunk_addresses()
            self._file.attrs.update(
                {
                    "format": FORMAT,
                    "version": VERSION,
                    "num_rows": self.num_rows,
                    "block_rows": self.options.block_rows,
                }
            )
            self._file.close()
            self._sink.check()
            self._sink.close()
            return settle(self._partial, self.path)

    def _write_chunk_addresses(self) -> None:
        """Record where the chunks lie: asking HDF5 for each takes longer than reading it."""
        if self.options.compression != "none":
            return
        self._file.flush()
        found = [
            shard_schema.chunk_addresses(self._datasets[column.path], self.options.block_rows)
            for column in self._columns
        ]
        counts = np.array([len(addresses) for addresses in found], np.int64)
        self._file.create_dataset(shard_schema.CHUNK_COUNTS, data=counts)
        flat = [address for addresses in found for address in addresses]
        self._file.create_dataset(shard_schema.CHUNK_ADDRESSES, data=np.array(flat, np.int64))

    def abort(self) -> None:
        """Drop what was written."""
        self._file.close()
        self._sink.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file.id:
            self.abort()


def _rest(chunk: NDArray[Any], step: int) -> tuple[int, ...]:
    """The shape of what a chunk lacks."""
    return (step - len(chunk), *chunk.shape[1:])
