"""Ranks that interrupt and resume many jobs in one world, as starting a world takes longest.

mpirun -n 3 python -m mpi4py tests/checkpoint/resume_ranks.py DATA OUT RESULT.json [JOB …]
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from heterps_hpc.checkpoint import Checkpoint, Contents, newest
from heterps_hpc.checkpoint.export import export
from heterps_hpc.checkpoint.verify import verify
from heterps_hpc.dataset import Dataset
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.state.begin import begin
from heterps_hpc.runtime.state.saver import Saver
from heterps_hpc.runtime.training import Training
from heterps_hpc.runtime.votes import CONTINUE, STOP, StopFlag
from tests.equivalence.cases import MODELS, Case
from tests.faults.runs import Run, different_bits, different_numbers, learned, make_run

STEPS = 9
WARM = "warm start with new slots"
EXPORTED = "warm start from an export"
LIMIT = {"float32": 1e-5, "float64": 1e-10}


@dataclass(frozen=True)
class Interrupted:
    """A job that is stopped before step `stop` and continues, under its own and other layouts."""

    name: str
    case: Case
    stop: int
    others: tuple[str, ...] = ()
    tables: dict[str, Any] = field(default_factory=dict)
    tables_then: dict[str, Any] | None = None  # other table options after the stop
    finished: bool = False  # not stopped: the run ends there, and is extended


COUNTING = {
    "counters": True,
    "show_decay": 0.9,
    "evict_after_steps": 3,
    "evict_every": 2,
    "track_changes": True,
}
TIERS = {"hot_bytes": 6 << 9, "spill_dir": "spill"}  # alongside the run directory

JOBS = [
    Interrupted(
        "synchronous",
        Case("ctrdnn", "2+1", 2, 0, "float32", "plain"),
        4,
        ("3", "1+2", "split slot, one stage"),
    ),
    Interrupted("one ahead", Case("ctrdnn", "2+1", 2, 1, "float32", "adam"), 5, ("3", "1+2")),
    Interrupted(
        "two ahead, split slot",
        Case("two_embedding", "split slot, one stage", 1, 2, "float64", "clip"),
        3,
        ("3", "2+1"),
    ),
    Interrupted(
        "weights and momentum", Case("mixed", "cpu-gpu-cpu", 1, 1, "float64", "weight"), 6, ("3",)
    ),
    Interrupted(
        "finished, then extended",
        Case("ctrdnn", "2+1", 2, 1, "float32", "plain"),
        5,
        ("3",),
        finished=True,
    ),
    Interrupted(
        "finished within an epoch, two ahead, admission",
        Case("two_embedding", "split slot, one stage", 1, 2, "float64", "plain"),
        4,
        ("2+1",),
        {"admit_after": 2},
        finished=True,
    ),
    Interrupted("negatives", Case("matchnet", "1+2", 4, 1, "float32", "adam"), 4, ("2+1",)),
    Interrupted("dropout", Case("nce", "3", 2, 2, "float64", "plain"), 5, ("1+2",)),
    Interrupted("early", Case("ctrdnn", "3", 1, 1, "float32", "adam"), 2, ("2+1",)),
    Interrupted("counting", Case("ctrdnn", "2+1", 1, 1, "float32", "plain"), 5, ("3",), COUNTING),
    Interrupted(
        "admission", Case("ctrdnn", "2+1", 1, 0, "float32", "plain"), 5, ("3",), {"admit_after": 2}
    ),
    Interrupted(
        "admission, two ahead",
        Case("ctrdnn", "2+1", 1, 2, "float32", "plain"),
        5,
        ("3",),
        {"admit_after": 2},
    ),
    Interrupted(
        "sketch, one ahead",
        Case("ctrdnn", "split slot, one stage", 1, 1, "float32", "plain"),
        4,
        ("3",),
        {"admit_after": 2, "sketch_bytes": 4096},
    ),
    Interrupted(
        "sketch",
        Case("ctrdnn", "2+1", 1, 0, "float32", "plain"),
        5,
        ("3",),
        {"admit_after": 3, "sketch_bytes": 4096},
    ),
    Interrupted(
        "tiers on, then off",
        Case("ctrdnn", "2+1", 1, 1, "float32", "adam"),
        5,
        ("3",),
        TIERS,
        tables_then={},
    ),
    Interrupted(
        "tiers off, then on",
        Case("ctrdnn", "2+1", 1, 1, "float32", "adam"),
        5,
        ("3",),
        tables_then=TIERS,
    ),
]


class StopBefore(Saver):
    """Votes to stop before a step, as a signal would make it."""

    stop_before = 1 << 60

    def vote(self, step: int) -> int:
        return STOP if step >= self.stop_before else CONTINUE


def train(job: Interrupted, data: Path, path: Path, layout: str, stop: int | None) -> int:
    """One start of a run on all ranks; returns the step that it ended at."""
    comm = MPI.COMM_WORLD
    tables = job.tables if stop is not None or job.tables_then is None else job.tables_then
    tables = {"num_partitions": 6, **tables}
    if "spill_dir" in tables:
        tables["spill_dir"] = str(path / tables["spill_dir"])
    steps = job.stop if job.finished and stop is not None else STEPS
    run = make_run(
        path, data, job.case, layout, steps=steps, every_steps=None, train={"tables": tables}
    )
    rank = Rank(comm, run.job, run.layout, Dataset.open(run.job.data.train))
    begin(rank, RunDir(path))
    saver = StopBefore(rank, RunDir(path), StopFlag())
    if stop is not None and not job.finished:
        saver.stop_before = stop
    training = Training(rank, RunDir(path), saver=saver)
    training.run()
    if "hot_bytes" in tables and rank.tables is not None:
        held = rank.tables.tables.values()
        assert sum(table.stats()["cold"] for table in held), "no row went cold"
    training.close()
    rank.close()
    return rank.step


def check(job: Interrupted, data: Path, out: Path) -> list[str]:
    """Run undisturbed, interrupted, and interrupted under other layouts; what differs."""
    comm = MPI.COMM_WORLD
    train(job, data, out / "whole", job.case.layout, None)
    found = []
    for layout in (job.case.layout, *job.others):
        path = out / layout
        step = train(job, data, path, job.case.layout, job.stop)
        train(job, data, path, layout, None)
        if comm.rank == 0:
            whole, again = _newest(out / "whole"), _newest(path)
            if not (step < STEPS and verify(again).problems == []):
                found.append(f"{layout}: stopped at {step}, {verify(again).problems}")
            same = layout == job.case.layout
            differ = (
                different_bits(learned(again), learned(whole))
                if same
                else different_numbers(learned(again), learned(whole), LIMIT[job.case.precision])
            )
            found += [f"{layout}: {len(differ)} differ, such as {differ[:3]}"] if differ else []
    return found


def _newest(path: Path) -> Checkpoint:
    found = newest(path / "checkpoints")
    assert found is not None
    return found


def check_warm(data: Path, out: Path) -> list[str]:
    """A new run with more slots, from the weights of one that knew only some of them."""
    comm = MPI.COMM_WORLD
    case = Case("ctrdnn", "2+1", 1, 1, "float32", "adam")
    few = {**MODELS["ctrdnn"], "slots": ["user", "tags"]}
    before = make_run(out / "before", data, case, steps=3, every_steps=None, model=few)
    _train(before)
    after = make_run(
        out / "after",
        data,
        case,
        "1+2",
        every_steps=None,
        train={"init_from": str(before.directory.path), "seed": 77},
    )
    rank = Rank(comm, after.job, after.layout, Dataset.open(after.job.data.train))
    begin(rank, after.directory)
    parts = comm.gather((rank.table_rows(), rank.dense_tensors()))
    rank.close()
    if parts is None:
        return []
    got: dict[str, Any] = {}
    for rows, dense in parts:
        got |= rows | dense
    return _unlike(got, _newest(out / "before"))


def check_export(data: Path, out: Path) -> list[str]:
    """A run from an export learns the same bits as one from the checkpoint it was made of."""
    comm = MPI.COMM_WORLD
    case = Case("ctrdnn", "2+1", 1, 1, "float32", "plain")
    before = make_run(out / "before", data, case, steps=3, every_steps=None)
    _train(before)
    if comm.rank == 0:
        export(_newest(out / "before"), out / "exported", tables="npz", state=True)
    comm.barrier()
    for name in ("before", "exported"):
        weights = {"init_from": str(out / name), "seed": 77}
        _train(make_run(out / f"from {name}", data, case, "1+2", steps=3, train=weights))
    if comm.rank:
        return []
    first, second = (learned(_newest(out / f"from {name}")) for name in ("before", "exported"))
    moved = different_bits(learned(_newest(out / "before")), first)
    return different_bits(first, second) + ([] if moved else ["nothing was learned after it"])


def _train(run: Run) -> None:
    rank = Rank(MPI.COMM_WORLD, run.job, run.layout, Dataset.open(run.job.data.train))
    begin(rank, run.directory)
    training = Training(rank, run.directory, saver=Saver(rank, run.directory, StopFlag()))
    training.run()
    training.close()
    rank.close()


def _unlike(got: dict[str, Any], checkpoint: Checkpoint) -> list[str]:
    """Rows of the two tables and parameters that fit must be those of the checkpoint."""
    problems = []
    if {name for name in got if isinstance(got[name], tuple)} != {"user", "tags"}:
        problems.append(f"rows where there were none: {sorted(got)}")
    with Contents(checkpoint) as contents:
        for table in ("user", "tags"):
            blocks = [b for p in range(6) for b in contents.rows(table, p)]
            keys = np.concatenate([block["keys"] for block in blocks])
            vectors = np.concatenate([block["vectors"] for block in blocks])
            ours, theirs = np.argsort(got[table][0]), np.argsort(keys)
            if not np.array_equal(got[table][1][ours], vectors[theirs]):
                problems.append(f"table {table} differs")
        for name in contents.names("dense"):
            value = contents.dense(name)["value"]
            if value.shape == got[name].shape and not np.array_equal(value, got[name]):
                problems.append(f"{name} differs")
        saved = {name: contents.dense(name)["value"] for name in contents.names("dense")}
        fits = [name for name, value in saved.items() if value.shape == got[name].shape]
        if len(fits) != len(saved) - 1:
            problems.append(f"one parameter has another shape, these fit: {fits}")
    return problems


def main(data: Path, out: Path, result: Path, only: list[str]) -> None:
    """All jobs, one after the other."""
    outcomes = {}
    for number, job in enumerate(JOBS):
        if only and job.name not in only:
            continue
        outcomes[job.name] = check(job, data, out / str(number))
        if MPI.COMM_WORLD.rank == 0:
            result.write_text(json.dumps(outcomes))
    if not only or WARM in only:
        outcomes[WARM] = check_warm(data, out / "warm")
    if not only or EXPORTED in only:
        outcomes[EXPORTED] = check_export(data, out / "export")
    if MPI.COMM_WORLD.rank == 0:
        result.write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
