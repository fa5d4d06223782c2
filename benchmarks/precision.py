"""What rows of two bytes cost in quality: AUC on the demo's data, by precision and seed.

    python -m benchmarks.precision [--quick] [--json FILE]

Every precision trains the job of examples/ctr_small.yaml on one rank, for one epoch, from the same
seeds. Seeds differ in the first values and in the order of rows; a precision that costs no quality
differs from float32 by less than one seed from the next. --quick: two seeds.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import yaml

from benchmarks.peers import cache_folder
from benchmarks.record import Report, standard_options
from benchmarks.train.contenders import mpirun
from heterps_hpc.config import Job

PRECISIONS = ("float32", "bfloat16", "float16")
_TIME_LIMIT = 3600  # seconds of a training, which may run beside other work: no figure hangs on it
EXAMPLE = Path(__file__).parents[1] / "examples/ctr_small.yaml"


def demo_job(precision: str, seed: int) -> Job:
    """The demo's job, with its data in the cache."""
    written = yaml.safe_load(EXAMPLE.read_text())
    data = cache_folder().parent / "benchmark-data" / "ctr_small"
    written["data"] |= {"train": str(data / "train"), "test": str(data / "test")}
    tables = {} if precision == "float32" else {"tables": {"precision": precision}}
    written["train"] |= {"seed": seed, **tables}
    return Job.parse({key: written[key] for key in ("name", "model", "data", "train")}, "demo")


def trained_auc(precision: str, seed: int) -> float:
    """On this rank: the AUC after training."""
    import torch
    from mpi4py import MPI

    from benchmarks.train.ours import make_layout
    from data_prep.synthetic import ensure_synthetic
    from heterps_hpc.dataset import Dataset
    from heterps_hpc.runtime.rank import Rank
    from heterps_hpc.runtime.training import Training

    torch.set_num_threads(1)
    job = demo_job(precision, seed)
    assert job.data.synthetic is not None
    ensure_synthetic(job.data.synthetic, job.data.train, job.data.test)
    rank = Rank(MPI.COMM_SELF, job, make_layout(job, "*:1"), Dataset.open(job.data.train))
    training = Training(rank)
    auc = training.run().evaluation["auc"]
    training.close()
    rank.close()
    return auc


def main() -> None:
    """Train, print, write."""
    options = standard_options(__doc__).parse_args()
    num_seeds = 2 if options.quick else 3
    found: dict[str, list[float]] = {name: [] for name in PRECISIONS}
    for seed in range(num_seeds):
        for name in PRECISIONS:
            figures = mpirun(1, "benchmarks.precision", "rank", name, seed, time_limit=_TIME_LIMIT)
            found[name].append(figures["auc"])
    report = Report("precision", "AUC with rows of two bytes, the demo's data")
    full = found["float32"]
    spread = statistics.stdev(full)
    report.add("float32: AUC, mean of seeds", statistics.mean(full), "")
    report.add("float32: standard deviation between seeds", spread, "")
    for name in PRECISIONS[1:]:
        change = statistics.mean(found[name]) - statistics.mean(full)
        report.add(f"{name}: AUC - that of float32, mean of seeds", change, "")
        report.add(
            f"{name}: this difference / deviation between seeds", abs(change) / spread, "x", "<= 1"
        )
    report.notes.append(
        "By seed: " + "; ".join(f"{n} {', '.join(f'{x:.5f}' for x in v)}" for n, v in found.items())
    )
    report.finish(options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        print(json.dumps({"auc": trained_auc(sys.argv[2], int(sys.argv[3]))}))
    else:
        main()
