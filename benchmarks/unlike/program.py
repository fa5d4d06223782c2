"""Runs rank programs one after the other in one Slurm job on all nodes of a cluster.

    srun … python -m mpi4py -m benchmarks.unlike.program RUN_DIR

RUN_DIR holds a layout with every node; requests for programs come as files (requests.py). Each runs
on the ranks that its layout asks for, with the functions that a job of its own would run.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from mpi4py import MPI

from benchmarks.unlike.cases import ALL_NODES
from benchmarks.unlike.requests import Requests
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.launch.rank_command import RANK_PROGRAM
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.measure.links import measure_links
from heterps_hpc.runtime.measure.program import measure
from heterps_hpc.runtime.measure.trial import run_trial
from heterps_hpc.runtime.metrics.summary import write_summary
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.rank_program import End, Start, run_program
from heterps_hpc.runtime.training import Training

_NAP_SECONDS = 0.05  # ranks without a part in a layout leave their processor alone


def serve(start: Start) -> End:
    """Do what is asked for until the last request."""
    _forget_the_job()
    requests, number = Requests(start.run_dir.path), 0
    while True:
        while start.comm.rank == 0 and not requests.is_there(number):
            time.sleep(_NAP_SECONDS)
        _wait_for_all(start.comm)
        request = requests.read(number)
        if request is None:
            return End()
        _run(start, request)
        _wait_for_all(start.comm)
        if start.comm.rank == 0:
            requests.answer(number)
        number += 1


def _forget_the_job() -> None:
    """Slurm's variables describe the job with all nodes; the preflight would hold each layout to
    them. MPI has started and needs them no longer."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        del os.environ[name]


def train(start: Start) -> End:
    """What `heterps_hpc.runtime` does, but for saving and watching."""
    rank = Rank(start.comm, start.job, start.layout, Dataset.open(start.job.data.train))
    training = Training(rank, start.run_dir)
    result = training.run()
    write_summary(rank, result, training.exchange, training.reducer, start.run_dir)
    training.close()
    rank.close()
    return End()


PROGRAMS = {
    RANK_PROGRAM: train,
    "heterps_hpc.runtime.measure.program": measure,
    "heterps_hpc.runtime.measure.links": measure_links,
    "heterps_hpc.runtime.measure.trial": run_trial,
}


def _run(start: Start, request: dict[str, str]) -> None:
    """One program, on those of the world's ranks that its layout asks for."""
    run, mine = (
        RunDir(request["run"]),
        world_ranks(Layout.load(Path(request["layout"])), start.layout),
    )
    has_part = start.comm.rank in mine
    color, key = (0, mine.index(start.comm.rank)) if has_part else (MPI.UNDEFINED, 0)
    group = start.comm.Split(color, key)
    if has_part:
        assert isinstance(group, MPI.Intracomm)
        job, layout = Job.parse_saved(run.job), Layout.load(run.layout)
        PROGRAMS[request["program"]](Start(group, run, job, layout, None))
        group.Free()


def world_ranks(layout: Layout, world: Layout) -> list[int]:
    """The rank of the world that is each rank of a layout: the first ones of every pool, or of the
    world for a pool that stands for all nodes."""
    first = {ALL_NODES: 0} | {part.pool: part.first_rank for part in world.components}
    return [
        first[component.pool] + index
        for component in layout.components
        for index in range(component.num_ranks)
    ]


def _wait_for_all(comm: MPI.Intracomm) -> None:
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_NAP_SECONDS)


if __name__ == "__main__":
    sys.exit(run_program(serve, sys.argv[1:]))
