"""A data set with several labels: a job learns the one that it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.data.samples import MIXED, mixed_rows
from tests.mpi.conftest import OnRanks

pytestmark = pytest.mark.mpi


def learn(comm: Any, folder: Path, name: str, label: str | None) -> tuple[list[float], Any]:
    """Losses and quality of a small job."""
    from heterps_hpc.config import Job
    from heterps_hpc.dataset import Dataset
    from heterps_hpc.layout import Stage
    from heterps_hpc.models import build_model
    from heterps_hpc.runtime.rank import Rank
    from heterps_hpc.runtime.training import Training
    from heterps_hpc.sharding import bind_plan
    from tests.equivalence.cases import CLUSTER, POOLS

    data = {"train": str(folder / name), "test": str(folder / name), "label": label}
    job = Job.parse(
        {
            "name": name,
            "model": {"name": "ctrdnn", "embedding_dim": 4, "hidden": [8]},
            "data": data,
            "train": {"batch_size": 50, "tables": {"num_partitions": 4, "counters": True}},
            "checkpoint": {"at_end": False},
        },
        name,
    )
    dataset = Dataset.open(job.data.train)
    model = build_model(job.model, dataset.manifest)
    stage = Stage(pool=POOLS[0], layers=tuple(x.name for x in model.layers), num_ranks=1)
    layout = bind_plan((stage,), model=model, cluster=CLUSTER, job=name, num_partitions=4)
    rank = Rank(comm, job, layout, dataset)
    training = Training(rank)
    result = training.run()
    rows = rank.table_rows()
    training.close()
    rank.close()
    return result.losses, (result.evaluation, {name: len(keys) for name, (keys, _) in rows.items()})


def test_the_named_label_is_learned(shared_path: Path, on_ranks: OnRanks) -> None:
    from heterps_hpc.dataset.write import DatasetWriter

    def work(comm: Any) -> list[Any]:
        rows = mixed_rows(200)
        assert rows.labels is not None
        swapped = replace(rows, labels=rows.labels[:, ::-1])
        for name, schema, given in (
            ("both", MIXED, rows),
            ("swapped", MIXED.model_copy(update={"labels": ("buy", "click")}), swapped),
        ):
            with DatasetWriter(shared_path / name, schema) as writer:
                writer.append(given)
        return [
            learn(comm, shared_path, "both", None),
            learn(comm, shared_path, "both", "click"),
            learn(comm, shared_path, "both", "buy"),
            learn(comm, shared_path, "swapped", None),
        ]

    first, click, buy, swapped = on_ranks(1, work)[0]
    assert first == click
    assert buy == swapped
    assert buy[0] != click[0]
