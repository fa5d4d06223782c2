"""Small real runs to disturb: a run directory, its start by mpirun, and what it learned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc import events as event_log
from heterps_hpc.checkpoint import Checkpoint, Contents, newest
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from tests.equivalence.cases import Case, make_job, make_layout, make_model
from tests.mpi_run import Outcome, mpirun

RANK_PROGRAM = ["-m", "heterps_hpc.runtime"]
FAULTY_PROGRAM = ["-m", "tests.faults.faulty_rank"]

Learned = dict[str, NDArray[Any]]


@dataclass
class Run:
    """One run directory with its job and layout."""

    directory: RunDir
    job: Job
    layout: Layout

    def start(
        self,
        timeout: float = 240,
        environment: Mapping[str, str] | None = None,
        program: list[str] = RANK_PROGRAM,
    ) -> Outcome:
        """All ranks, until they end."""
        event_log.record(self.directory, event_log.Started(launcher="test"))
        arguments = [*program, str(self.directory.path)]
        return mpirun(self.layout.num_ranks, arguments, timeout, environment)

    def learned(self) -> Learned:
        """Everything that the newest checkpoint holds."""
        found = newest(self.directory.checkpoints)
        assert found is not None, "no complete checkpoint"
        return learned(found)

    def reasons(self) -> str:
        """What ranks reported at their end."""
        ends = event_log.read(self.directory).newest_start.of(event_log.RankEnded)
        return "\n".join(str(end.reason) for end in ends)


def make_run(
    path: Path,
    data: Path,
    case: Case,
    layout: str | None = None,
    *,
    steps: int = 12,
    every_steps: int | None = 3,
    **other: Any,
) -> Run:
    """Freeze a job and a layout; `other` are further keys of the job, such as watch."""
    described = make_job(case, data).model_dump(mode="json", exclude_none=True)
    # Horovod's start takes longer than these runs; sums over MPI are as repeatable
    described["train"] |= {"steps": steps, "reducer": "mpi", **other.pop("train", {})}
    described["checkpoint"] = {"at_end": True, "keep": 2, **other.pop("checkpoint", {})}
    if every_steps is not None:
        described["checkpoint"]["every_steps"] = every_steps
    described |= other
    job = Job.parse(described, "job")
    model = make_model(job, Dataset.open(job.data.train).manifest)
    shape = Case(**{**case.to_dict(), "layout": layout or case.layout})
    bound = make_layout(shape, job, model)
    directory = RunDir(path).create()
    job.save(directory.job)
    bound.save(directory.layout)
    return Run(directory, job, bound)


def learned(checkpoint: Checkpoint) -> Learned:
    """All arrays of a checkpoint but pooled rows, whatever the shards; rows sorted by key."""
    found: Learned = {}
    with Contents(checkpoint) as contents:
        for name in contents.names("dense"):
            for column, value in contents.dense(name).items():
                found[f"dense {name} {column}"] = value
        for name in contents.names("progress"):
            if name == "losses":
                (place,) = contents.places("progress", name)
                found["losses"] = contents.whole(place)
        for table in checkpoint.manifest.tables:
            for partition in range(checkpoint.manifest.num_partitions):
                for column, value in _rows(contents, table, partition).items():
                    found[f"table {table} {partition} {column}"] = value
    return found


def _rows(contents: Contents, table: str, partition: int) -> Learned:
    blocks = list(contents.rows(table, partition))
    extra = {f"extra {k}": v for k, v in contents.extra(table, partition).items()}
    if not blocks:
        return extra
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    order = np.argsort(columns["keys"])
    return {name: value[order] for name, value in columns.items()} | extra


def different_bits(left: Learned, right: Learned) -> list[str]:
    """Names of arrays that are not the same bit for bit."""
    names = sorted(set(left) ^ set(right))
    return names + [
        name
        for name in left
        if name in right
        and (left[name].dtype != right[name].dtype or left[name].tobytes() != right[name].tobytes())
    ]


def different_numbers(left: Learned, right: Learned, limit: float) -> list[str]:
    """Names of arrays that differ by more than the order of summation explains."""
    names = sorted(set(left) ^ set(right))
    for name in set(left) & set(right):
        a, b = left[name].astype(np.float64), right[name].astype(np.float64)
        scale = float(np.linalg.norm(b)) or 1.0
        if a.shape != b.shape or float(np.linalg.norm(a - b)) / scale > limit:
            names.append(name)
    return names


def events(run: Run, kind: str) -> list[dict[str, Any]]:
    """The run's history of one kind."""
    return [line for line in event_log.read_lines(run.directory) if line["event"] == kind]


def metrics(run: Run) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in run.directory.metrics.read_text().splitlines()]
