"""Writes a whole dataset: shards first, the manifest last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from heterps_hpc.dataset import shard_schema
from heterps_hpc.dataset.columns import SampleRows
from heterps_hpc.dataset.manifest import (
    KEY_SAMPLE_FILE,
    MANIFEST_FILE,
    Compression,
    DatasetManifest,
    DatasetShard,
    FileSpec,
    Schema,
)
from heterps_hpc.dataset.write.disk import Sink, disk_errors, settle
from heterps_hpc.dataset.write.shard_writer import (
    BLOCK_ROWS,
    DatasetShardWriter,
    ShardOptions,
    ShardStats,
)
from heterps_hpc.errors import UserError

ROWS_PER_SHARD = 1 << 20


def shard_name(number: int) -> str:
    """The file name of a shard."""
    return f"shard-{number:05d}.h5"


def refuse_existing(path: Path) -> None:
    """A dataset is never overwritten by accident."""
    if (path / MANIFEST_FILE).exists():
        raise UserError(
            f"{path}: there is a dataset already; choose another directory, or delete it first"
        )


class DatasetWriter:
    """Appends rows to a new dataset, from one process; use as a context manager.

    Leaving the block without an error writes the manifest; with an error, or killed, no manifest
    appears and the directory is not a dataset.
    """

    def __init__(
        self,
        path: Path | str,
        schema: Schema,
        *,
        name: str | None = None,
        rows_per_shard: int = ROWS_PER_SHARD,
        block_rows: int = BLOCK_ROWS,
        compression: Compression = "none",
        seed: int = 0,
        made: dict[str, Any] | None = None,
    ) -> None:
        self.path = Path(path)
        self.name = name or self.path.name
        self.rows_per_shard = rows_per_shard
        self.made = made or {}
        self.options = ShardOptions(schema, block_rows, compression, seed)
        if rows_per_shard < 1:
            raise UserError(f"rows_per_shard is {rows_per_shard}; it must be at least 1")
        refuse_existing(self.path)
        self._shards: list[DatasetShard] = []
        self._stats: ShardStats | None = None
        self._current: DatasetShardWriter | None = None
        self._manifest: DatasetManifest | None = None

    @property
    def manifest(self) -> DatasetManifest:
        """What was written; there once the writer is closed."""
        if self._manifest is None:
            raise RuntimeError(f"{self.path}: the dataset is not closed yet")
        return self._manifest

    def append(self, rows: SampleRows) -> None:
        """Add rows, opening a new shard where one is full; do not change their arrays any more."""
        first, total = 0, rows.num_rows
        while first < total:
            if self._current is None:
                number = len(self._shards)
                self._current = DatasetShardWriter(
                    self.path / shard_name(number), number, self.options
                )
            capacity = self.rows_per_shard - self._current.num_rows
            last = min(total, first + capacity)
            whole = first == 0 and last == total
            self._current.append(rows if whole else rows.cut(first, last))
            first = last
            if self._current.num_rows == self.rows_per_shard:
                self._finish_shard()

    def _finish_shard(self) -> None:
        if self._current is not None:
            self._shards.append(self._current.close())
            stats, self._current = self._current.stats, None
            self._stats = stats if self._stats is None else merge_stats(self._stats, stats)

    def close(self) -> DatasetManifest:
        """Write the manifest."""
        if self._manifest is None:
            self._finish_shard()
            self._manifest = finish(
                self.path, self.name, self.options, self._shards, self._stats, self.made
            )
        return self._manifest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._current is not None:
            self._current.abort()


def merge_stats(left: ShardStats, right: ShardStats) -> ShardStats:
    """Add the right one to the left one."""
    for name, cardinality in right.cardinality.items():
        left.cardinality[name].merge(cardinality)
        left.samples[name].merge(right.samples[name])
        left.num_keys[name] += right.num_keys[name]
    for name, count in right.num_missing.items():
        left.num_missing[name] += count
    left.label_sums += right.label_sums
    np.minimum(left.label_min, right.label_min, out=left.label_min)
    np.maximum(left.label_max, right.label_max, out=left.label_max)
    left.raw_bytes += right.raw_bytes
    return left


def finish(
    path: Path,
    name: str,
    options: ShardOptions,
    shards: Sequence[DatasetShard],
    stats: ShardStats | None,
    made: dict[str, Any],
) -> DatasetManifest:
    """Turn a directory of finished shards into a dataset."""
    if stats is None:
        raise UserError(f"{path}: there are no rows to write; check the input")
    num_rows = sum(shard.num_rows for shard in shards)
    slots = tuple(
        slot.model_copy(
            update={
                "cardinality": stats.cardinality[slot.name].estimate(),
                "mean_keys": stats.num_keys[slot.name] / num_rows,
                "missing_rate": _rate(stats.num_missing.get(slot.name), num_rows),
                "sampled_keys": len(np.unique(stats.samples[slot.name].result())),
            }
        )
        for slot in options.schema.slots
    )
    manifest = DatasetManifest(
        **options.schema.model_copy(update={"slots": slots}).model_dump(),
        name=name,
        block_rows=options.block_rows,
        compression=options.compression,
        num_rows=num_rows,
        raw_bytes=stats.raw_bytes,
        label_means=tuple(float(total / num_rows) for total in stats.label_sums),
        label_ranges=tuple(zip(stats.label_min.tolist(), stats.label_max.tolist(), strict=True)),
        shards=tuple(shards),
        key_samples=_write_key_samples(path, stats),
        made=made,
    )
    with disk_errors(path / MANIFEST_FILE):
        manifest.save(path / MANIFEST_FILE)
    return manifest


def _rate(count: int | None, num_rows: int) -> float | None:
    return None if count is None else count / num_rows


def _write_key_samples(path: Path, stats: ShardStats) -> FileSpec:
    partial = path / f".{KEY_SAMPLE_FILE}.partial"
    with disk_errors(partial):
        sink = Sink(partial)
        with h5py.File(sink, "w", libver=shard_schema.LIBVER) as file:
            for slot, sample in stats.samples.items():
                keys: np.ndarray[Any, Any] = sample.result()
                file.create_dataset(slot, data=keys)
        sink.check()
        sink.close()
        return settle(partial, path / KEY_SAMPLE_FILE)
