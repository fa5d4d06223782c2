"""Rewrites a checkpoint into other shards, so that each rank of a new layout reads one file.

Resuming never needs this: any layout reads any checkpoint. It helps when a checkpoint is to be
read many times, or when a few large files suit a file system better than many small ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from heterps_hpc.checkpoint.contents import Contents, Place
from heterps_hpc.checkpoint.manifest import MANIFEST_FILE, Segment, ShardSpec
from heterps_hpc.checkpoint.shardwriter import PlannedArray, ShardWriter
from heterps_hpc.checkpoint.store import Checkpoint, publish, shard_name
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout
from heterps_hpc.row_ranges import split_rows

Partitions = Mapping[str, Sequence[int]]  # per table

_BLOCK_BYTES = 1 << 23


def even_split(checkpoint: Checkpoint, num_shards: int) -> list[Partitions]:
    """Every table cut into as many equal runs of partitions as there are shards."""
    manifest = checkpoint.manifest
    if not 1 <= num_shards <= manifest.num_partitions:
        raise UserError(
            f"{num_shards} shards: give 1 to {manifest.num_partitions}, the number of partitions"
        )
    runs = split_rows(manifest.num_partitions, num_shards)
    return [{table: range(*run) for table in manifest.tables} for run in runs]


def by_layout(checkpoint: Checkpoint, layout: Layout) -> list[Partitions]:
    """The partitions that each sparse rank of a layout holds."""
    if layout.num_partitions != checkpoint.manifest.num_partitions:
        raise UserError(
            f"the layout has {layout.num_partitions} partitions per table, the checkpoint "
            f"{checkpoint.manifest.num_partitions}; plan again with the same number"
        )
    found: list[Partitions] = []
    for entry in layout.ranks:
        if entry.sparse:
            held: dict[str, list[int]] = {}
            for shard in entry.shards:
                held.setdefault(shard.table, []).extend(
                    range(shard.first_partition, shard.last_partition)
                )
            found.append(held)
    return found


def reshard(checkpoint: Checkpoint, out: Path, parts: Sequence[Partitions]) -> Checkpoint:
    """Write the same content as one file per element of `parts`."""
    if (out / MANIFEST_FILE).exists():
        raise UserError(f"{out}: there is a checkpoint already; choose another directory")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made: {error.strerror}; choose another") from None
    token = secrets.token_hex(4)
    shards = []
    with Contents(checkpoint) as contents:
        for number, held in enumerate(parts):
            path = out / shard_name(number, token)
            shards.append(_write_shard(contents, path, number, held))
    manifest = checkpoint.manifest.model_copy(update={"shards": tuple(shards)})
    publish(out, manifest)
    return Checkpoint.open(out)


def _write_shard(contents: Contents, path: Path, number: int, held: Partitions) -> ShardSpec:
    plans: list[tuple[PlannedArray, list[tuple[Place, Segment]]]] = []
    for table, partitions in held.items():
        plans += _plan_table(contents, table, partitions)
    if number == 0:  # what is not cut by partitions is small: it stays together
        for shard in contents.checkpoint.manifest.shards:
            for array in shard.arrays:
                if array.kind != "table":
                    place = Place(shard, array)
                    plans.append((_planned(place, array.shape[0]), _all_of(place)))
    attributes = {"step": contents.checkpoint.step}
    with ShardWriter(path, number, [plan for plan, _ in plans], attributes) as writer:
        for plan, sources in plans:
            for place, segment in sources:
                _copy(contents, writer, plan, place, segment)
        return writer.close()


def _plan_table(
    contents: Contents, table: str, partitions: Sequence[int]
) -> list[tuple[PlannedArray, list[tuple[Place, Segment]]]]:
    sources: dict[str, list[tuple[Place, Segment]]] = {}
    for partition in partitions:
        for column, found in contents.columns(table, partition).items():
            sources.setdefault(column, []).append(found)
    return [
        (_planned(found[0][0], sum(segment.num_rows for _, segment in found)), found)
        for found in sources.values()
    ]


def _planned(place: Place, num_rows: int) -> PlannedArray:
    array = place.array
    shape = (num_rows, *array.shape[1:])
    return PlannedArray(
        array.kind, array.name, array.column, np.dtype(array.dtype), shape, array.partitions
    )


def _all_of(place: Place) -> list[tuple[Place, Segment]]:
    return [(place, segment) for segment in place.array.segments]


def _copy(
    contents: Contents, writer: ShardWriter, plan: PlannedArray, place: Place, segment: Segment
) -> None:
    max_rows = max(1, _BLOCK_BYTES // max(1, plan.row_bytes))
    if not segment.num_rows:
        writer.write(plan, segment.partition, np.empty((0, *plan.shape[1:]), plan.dtype))
    for rows in contents.reader(place.shard).blocks(place.array, segment, max_rows):
        writer.write(plan, segment.partition, rows)
