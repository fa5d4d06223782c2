"""Run directories for tests of serving: trained by the oracle, saved as a checkpoint, no MPI."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heterps_hpc.checkpoint import Manifest, PlannedArray, RowFormat, ShardSpec, ShardWriter
from heterps_hpc.checkpoint.store import directory_of, publish, shard_name
from heterps_hpc.config import Job
from heterps_hpc.core import partition_of
from heterps_hpc.dataset import Dataset
from heterps_hpc.models import build_model
from heterps_hpc.rundir import RunDir
from tests.equivalence.oracle import Learned, Oracle

Planned = tuple[PlannedArray, list[tuple[int, NDArray[Any]]]]


@dataclass(frozen=True)
class Trained:
    """A run directory, and the oracle that stands for it."""

    run: Path
    job: Job
    oracle: Oracle

    def scores(self, dataset: Dataset) -> NDArray[Any]:
        """What the oracle gives for all rows of a data set."""
        from heterps_hpc.dataset import ColumnSelection, Order, Reader

        wanted = ColumnSelection(
            slots=tuple(self.oracle.model.data_slots()), dense=True, labels=True
        )
        order = Order(dataset, dataset.manifest.num_rows, shuffle=False)
        with Reader(dataset, order, wanted) as reader:
            batch = next(reader)
        for module in self.oracle.modules.values():
            module.eval()
        with torch.no_grad():
            scores: NDArray[Any] = self.oracle._forward(batch, create=False)[0]["score"].numpy()
        return scores


def train(job: Job, folder: Path, *, with_inputs: bool = True) -> Trained:
    """Train by the oracle and save what it learned as a run's checkpoint."""
    dataset = Dataset.open(job.data.train)
    oracle = Oracle(job, build_model(job.model, dataset.manifest), dataset)
    learned = oracle.train()
    run = RunDir(folder).create()
    job.save(run.job)
    directory = directory_of(run.checkpoints, len(learned.losses))
    directory.mkdir(parents=True)
    shard = _write(directory / shard_name(0, "cafe0123"), job, oracle, learned)
    precision = "float64" if job.train.precision == "float64" else "float32"
    manifest = Manifest(
        job=job.name,
        step=len(learned.losses),
        saved_at=1.0,
        model=oracle.model.name,
        model_fingerprint=oracle.model.fingerprint(),
        data_fingerprint="f" * 32,
        num_partitions=job.train.tables.num_partitions,
        must_match={},
        tables={
            spec.name: RowFormat(dim=spec.dim, state_dim=0, dtype=precision, optimizer="sgd")
            for spec in oracle.model.tables
        },
        shards=(shard,),
        data_schema=dataset.manifest.inputs()["schema"] if with_inputs else None,
        key_recipe=dataset.manifest.key_recipe() if with_inputs else None,
    )
    publish(directory, manifest)
    return Trained(run.path, job, oracle)


def _write(path: Path, job: Job, oracle: Oracle, learned: Learned) -> ShardSpec:
    plans = [*_table_plans(job, oracle, learned), *_dense_plans(learned)]
    with ShardWriter(path, 0, [plan for plan, _ in plans], {"step": 1}) as writer:
        for plan, pieces in plans:
            for partition, rows in pieces:
                writer.write(plan, partition, rows)
        return writer.close()


def _table_plans(job: Job, oracle: Oracle, learned: Learned) -> list[Planned]:
    plans: list[Planned] = []
    count = job.train.tables.num_partitions
    for name in oracle.tables:
        keys, vectors = learned.rows[name]
        places = partition_of(keys, count)
        for column, values in (("keys", keys), ("vectors", vectors)):
            pieces = [(part, values[places == part]) for part in range(count)]
            plans.append((PlannedArray("table", name, column, values.dtype, values.shape), pieces))
    return plans


def _dense_plans(learned: Learned) -> list[Planned]:
    return [
        (PlannedArray("dense", name, "value", value.dtype, value.shape), [(0, value)])
        for name, value in learned.dense.items()
    ]


def raw_columns(num_rows: int, seed: int = 0) -> dict[str, Any]:
    """Raw rows as people have them: texts, integers, lists, numbers, gaps."""
    rng = np.random.default_rng(seed)
    users = rng.integers(0, 30, num_rows)
    return {
        "click": (rng.random(num_rows) < 0.3).astype(int).tolist(),
        "user": [f"user {user}" for user in users],
        "item": rng.integers(0, 40, num_rows).tolist(),
        "tags": ["|".join(f"t{tag}" for tag in rng.integers(0, 9, user % 4)) for user in users],
        "price": np.round(rng.gamma(2, 9, num_rows), 2).tolist(),
        "age": [None if user % 7 == 0 else float(user) for user in users],
    }


RECIPE = {
    "labels": [{"column": "click"}],
    "slots": [
        {"column": "user"},
        {"column": "item", "integer": True},
        {"column": "tags", "separator": "|"},
    ],
    "dense": [{"column": "price", "transform": "log"}, {"column": "age"}],
}
