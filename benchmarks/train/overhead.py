"""How much of a step is our own Python: a profile of one rank that does everything.

    python -m mpi4py -m benchmarks.train.overhead WORKLOAD_JSON DATA

The profiler makes Python look slower than it is, so the share is an upper bound.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
from pathlib import Path

import torch
from mpi4py import MPI

from benchmarks.train.ours import make_job, make_layout
from benchmarks.train.workload import Workload
from heterps_hpc.dataset import Dataset
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.training import Training


def main() -> None:
    """Profile some steps and print the share of time in our own Python functions."""
    work = Workload.from_json(sys.argv[1])
    torch.set_num_threads(1)
    job = make_job(work, Path(sys.argv[2]), 1, 1)
    rank = Rank(MPI.COMM_SELF, job, make_layout(job, "*:1"), Dataset.open(job.data.train))
    training = Training(rank)
    profile = cProfile.Profile()
    profile.runcall(training.run)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    total = sum(row[2] for row in stats.values())
    own = sum(row[2] for (file, _, _), row in stats.items() if "heterps_hpc" in file)
    worst = sorted(
        (
            (1e3 * row[2] / work.num_steps, f"{Path(file).name}:{line} {name}")
            for (file, line, name), row in stats.items()
            if "heterps_hpc" in file
        ),
        reverse=True,
    )
    print(json.dumps({"share": own / total, "milliseconds": worst[:8]}))
    training.close()
    rank.close()


if __name__ == "__main__":
    main()
