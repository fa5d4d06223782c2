"""heterps_hpc itself on a workload, by the trainer's own code.

    mpirun -n N python -m mpi4py -m benchmarks.train.ours WORKLOAD_JSON DATA STAGES MICRO STALENESS

STAGES is e.g. `*:2` (all layers by two ranks) or `1:1,*:1` (the first layer by one rank, the
others by another).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from mpi4py import MPI

from benchmarks.train.workload import StepClock, Workload
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.layout import Layout, Stage
from heterps_hpc.models import build_model
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.observer import Observer
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.state.begin import reserve_for_data
from heterps_hpc.runtime.training import Training
from heterps_hpc.sharding import bind_plan


def make_job(work: Workload, data: Path, micro_batches: int, staleness: int) -> Job:
    """The workload as a job."""
    return Job.parse(
        {
            "name": work.name,
            "model": {"name": "ctrdnn", "embedding_dim": work.dim, "hidden": list(work.hidden)},
            "data": {"train": str(data)},
            "train": {
                "batch_size": work.batch_size,
                "micro_batches": micro_batches,
                "staleness": staleness,
                "steps": work.num_steps,
                "metrics_every": 10**9,
                "sparse": {"optimizer": "adagrad_rowwise", "lr": work.sparse_lr},
                "dense": {"optimizer": "adagrad", "lr": work.dense_lr},
            },
        },
        "benchmark",
    )


def parse_stages(text: str, names: Sequence[str]) -> tuple[Stage, ...]:
    """`2:1,*:3` = the first two layers by one rank, all others by three."""
    stages = []
    first = 0
    for number, part in enumerate(text.split(",")):
        count, _, ranks = part.partition(":")
        last = len(names) if count == "*" else first + int(count)
        layers = tuple(names[first:last])
        stages.append(Stage(pool=f"pool{number}", layers=layers, num_ranks=int(ranks)))
        first = last
    return tuple(stages)


def make_layout(job: Job, text: str) -> Layout:
    """Stages of one pool each, as the argument says."""
    model = build_model(job.model, Dataset.open(job.data.train).manifest)
    stages = parse_stages(text, [layer.name for layer in model.layers])
    pools = [
        {"name": stage.pool, "price_per_hour": 1, "max_ranks": 99, "cores_per_node": 99}
        for stage in stages
    ]
    cluster = Cluster.parse({"pools": pools}, "benchmark")
    return bind_plan(stages, model=model, cluster=cluster, job=job.name, num_partitions=64)


def reader_seconds() -> float:
    """Processor time of the thread that reads ahead."""
    readers = [thread for thread in threading.enumerate() if thread.name == "heterps-reader"]
    spent = [Path(f"/proc/self/task/{each.native_id}/schedstat").read_text() for each in readers]
    return sum(int(text.split()[0]) for text in spent) / 1e9


class Watch(Observer):
    """The rates, and where the time of the last of them goes."""

    def __init__(self, timer: PhaseTimer, work: Workload) -> None:
        self._timer, self._work = timer, work
        self._began = self._read_before = 0.0
        self.clock = StepClock(work, work.batch_size)
        self.reader_share = 0.0  # of the time of one core

    def step_begins(self, step: int) -> None:
        """Start what begins here."""
        self.clock.before(step)
        if step == max(self._work.first_steps.values()):
            self._timer.restart()
            self._began, self._read_before = time.perf_counter(), reader_seconds()

    def step_ends(self, step: int) -> None:
        """Stop the clocks after the last step."""
        if step == self._work.num_steps - 1:
            self.clock.before(step + 1)
            seconds = time.perf_counter() - self._began
            self.reader_share = (reader_seconds() - self._read_before) / seconds


def main() -> None:
    """Train and print the rates of the whole job, and where the time went."""
    work = Workload.from_json(sys.argv[1])
    torch.set_num_threads(1)
    job = make_job(work, Path(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5]))
    dataset = Dataset.open(job.data.train)
    rank = Rank(MPI.COMM_WORLD, job, make_layout(job, sys.argv[3]), dataset)
    reserve_for_data(rank)  # as every run from scratch
    watch = Watch(rank.timer, work)
    training = Training(rank, observer=watch)
    training.run()
    phases = {name: 1e3 * s / work.timed_steps for name, s in rank.timer.seconds.items()}
    mine = (watch.clock.rates, watch.reader_share, [rank.world.entry.role, phases])
    gathered = MPI.COMM_WORLD.gather(mine)
    if gathered is not None:
        rates, shares, milliseconds = zip(*gathered, strict=True)
        found = {state: min(rate[state] for rate in rates) for state in rates[0]}
        found["reader_share"] = sum(shares) / len(shares)
        print(json.dumps({**found, "milliseconds": milliseconds}))
    training.close()
    rank.close()


if __name__ == "__main__":
    main()
