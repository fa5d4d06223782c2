"""heterps_hpc itself on a workload, by the trainer's own code.

    mpirun -n N python -m mpi4py -m benchmarks.train.ours WORKLOAD_JSON DATA STAGES MICRO STALENESS

STAGES is e.g. `*:2` (all layers by two ranks) or `1:1,*:1` (the first layer by one rank, the
others by another).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from mpi4py import MPI

from benchmarks.train.workload import Workload
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.layout import Layout, Stage
from heterps_hpc.models import build_model
from heterps_hpc.runtime.training import Trainer
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


class TimedTrainer(Trainer):
    """A trainer that starts its clock after the warm-up."""

    timed_from = 0
    timed_seconds = 0.0

    def _one_step(self, step: int) -> None:
        if step == self.timed_from:
            self.watch.restart()
            self.timed_started = time.perf_counter()
        super()._one_step(step)
        self.timed_seconds = (
            time.perf_counter() - self.timed_started if step >= self.timed_from else 0.0
        )


def main() -> None:
    """Train and print the rate of the whole job, and where the time went."""
    work = Workload.from_json(sys.argv[1])
    torch.set_num_threads(1)
    job = make_job(work, Path(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5]))
    trainer = TimedTrainer(MPI.COMM_WORLD, job, make_layout(job, sys.argv[3]))
    trainer.timed_from = work.warmup_steps
    trainer.run()
    rate = work.batch_size * work.timed_steps / trainer.timed_seconds
    phases = {name: 1e3 * s / work.timed_steps for name, s in trainer.watch.seconds.items()}
    gathered = MPI.COMM_WORLD.gather((trainer.world.entry.role, rate, phases))
    if gathered is not None:
        slowest = min(rate for _, rate, _ in gathered)
        facts = {"samples_per_second": slowest, "milliseconds": [[r, p] for r, _, p in gathered]}
        print(json.dumps(facts))
    trainer.close()


if __name__ == "__main__":
    main()
