"""Checkpoints made up for tests: real files, invented content, neither MPI nor torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.checkpoint import (
    Checkpoint,
    Manifest,
    PlannedArray,
    RowFormat,
    ShardSpec,
    ShardWriter,
)
from heterps_hpc.checkpoint.manifest import content_checksum
from heterps_hpc.checkpoint.store import directory_of, publish, shard_name
from heterps_hpc.core import partition_of
from heterps_hpc.row_ranges import split_rows

NUM_PARTITIONS = 6
TABLES = {"user": 4, "item/'$(x)\" \n": 2}  # table → numbers per row; names may be anything
DENSE = {"fc1.weight": (3, 5), "fc1.bias": (5,), "scale": (1,)}


def make_checkpoint(
    checkpoints: Path,
    step: int = 7,
    *,
    num_shards: int = 2,
    num_rows: int = 60,
    seed: int = 0,
    token: str = "cafe0123",
) -> Checkpoint:
    """A complete checkpoint; the same content for the same seed, whatever the shards."""
    directory = directory_of(checkpoints, step)
    directory.mkdir(parents=True, exist_ok=True)
    runs = split_rows(NUM_PARTITIONS, num_shards)
    shards = [
        write_shard(directory / shard_name(rank, token), rank, range(*run), step, num_rows, seed)
        for rank, run in enumerate(runs)
    ]
    publish(directory, make_manifest(step, shards))
    return Checkpoint.open(directory)


def make_manifest(step: int, shards: Sequence[ShardSpec]) -> Manifest:
    """The manifest over some shards."""
    return Manifest(
        job="made up",
        step=step,
        saved_at=1_700_000_000.0,
        model="two tables",
        model_fingerprint="0123456789abcdef",
        data_fingerprint="f" * 32,
        num_partitions=NUM_PARTITIONS,
        must_match={"train.seed": 5},
        tables={
            name: RowFormat(dim=dim, state_dim=1, dtype="float32", optimizer="adagrad_rowwise")
            for name, dim in TABLES.items()
        },
        shards=tuple(shards),
    )


def change_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest as an attacker would: with a checksum that fits."""
    data = json.loads(path.read_text())
    change(data)
    content = {name: value for name, value in data.items() if name != "checksum"}
    path.write_text(json.dumps({**content, "checksum": content_checksum(content)}))


def table_rows(table: str, partition: int, num_rows: int, seed: int) -> dict[str, NDArray[Any]]:
    """The rows of a partition: keys that belong there, numbers drawn from (seed, table)."""
    rng = np.random.default_rng([seed, len(table)])
    keys = np.unique(rng.integers(1, 1 << 63, num_rows, dtype=np.uint64))
    dim = TABLES[table]
    values = {
        "keys": keys,
        "vectors": rng.standard_normal((len(keys), dim), np.float32),
        "state": rng.random((len(keys), 1), np.float32),
        "step": rng.integers(0, 8, len(keys), dtype=np.uint32),
    }
    mine = partition_of(keys, NUM_PARTITIONS) == partition
    return {name: value[mine] for name, value in values.items()}


def dense_values(seed: int) -> dict[str, NDArray[Any]]:
    """The dense tensors."""
    rng = np.random.default_rng([seed, 99])
    return {name: rng.standard_normal(shape, np.float32) for name, shape in DENSE.items()}


def plan_shard(
    partitions: Sequence[int], rank: int, num_rows: int, seed: int
) -> list[tuple[PlannedArray, list[tuple[int, NDArray[Any]]]]]:
    """The arrays of a shard, each with its rows by partition."""
    plans = []
    for table in TABLES:
        parts = {p: table_rows(table, p, num_rows, seed) for p in partitions}
        for column in ("keys", "vectors", "state", "step"):
            pieces = [(p, rows[column]) for p, rows in parts.items()]
            total = sum(len(rows) for _, rows in pieces)
            shape = (total, *pieces[0][1].shape[1:])
            plans.append((PlannedArray("table", table, column, pieces[0][1].dtype, shape), pieces))
    if rank == 0:
        for name, value in dense_values(seed).items():
            plans.append(
                (PlannedArray("dense", name, "value", value.dtype, value.shape), [(0, value)])
            )
    return plans


def write_shard(
    path: Path, rank: int, partitions: Sequence[int], step: int, num_rows: int, seed: int
) -> ShardSpec:
    """One shard on disk."""
    plans = plan_shard(partitions, rank, num_rows, seed)
    with ShardWriter(path, rank, [plan for plan, _ in plans], {"step": step}) as writer:
        for plan, pieces in plans:
            for partition, rows in pieces:
                writer.write(plan, partition, rows)
        return writer.close()
