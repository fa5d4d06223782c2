"""A second run of a job, planned from what the first one did: how well is it predicted?

    python -m benchmarks.second_run --folder F [--only local slurm] [--json FILE] [--quick]

The jobs of `make demo` (locally) and of `make demo-slurm` (on the unlike nodes of two-and-two, as
root), each twice and with four times as many epochs, so that the start is a small part: the first
run is planned from measurements, the second from the first one's own times, as `heterps measure
--from RUN` takes them. With --folder runs are kept, and what is there is not run again.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.record import Report, standard_options
from benchmarks.unlike.runs import cluster_up
from heterps_hpc.commands.from_run import profile_from_run
from heterps_hpc.commands.run import run
from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout
from heterps_hpc.report.inputs import read_run
from heterps_hpc.report.outcome import shape
from heterps_hpc.rundir import RunDir

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
JOBS = {"local": EXAMPLES / "ctr_small.yaml", "slurm": EXAMPLES / "ctr_slurm.yaml"}
ORDER = ("first", "second")
LONGER = 4  # times the epochs of the examples


def job_of(on: str) -> Job:
    """The example, longer."""
    job = Job.load(JOBS[on])
    train = job.train.model_copy(update={"epochs": LONGER * (job.train.epochs or 1)})
    return job.model_copy(update={"train": train})


@contextmanager
def place(on: str) -> Iterator[None]:
    """Where a job runs: here, or on a cluster for as long as the block lasts."""
    if on == "local":
        yield
    else:
        with cluster_up("two-and-two"):
            yield


def run_twice(on: str, folder: Path) -> dict[str, RunDir]:
    """The two runs of a job, each unless it is there."""
    runs = {name: RunDir(folder / f"{on}-{name}") for name in ORDER}
    for name, directory in runs.items():
        if directory.summary.exists():
            continue
        profile = None
        if name == "second":
            profile = folder / f"{on}-profile.json"
            profile_from_run(runs["first"].path).save(profile)
        code = run(job_of(on), directory.path, on, profile=profile)
        if code != ExitCode.DONE:
            raise RuntimeError(f"{directory.path} ended with code {int(code)}")
    return runs


def add_to(report: Report, on: str, runs: dict[str, RunDir]) -> None:
    """How far off each prediction was."""
    for name, directory in runs.items():
        found = read_run(directory)
        plan = Layout.load(directory.layout).plan
        assert plan is not None
        assert found.summary is not None
        measured = found.summary.samples_per_second
        predicted = plan.estimate.samples_per_second
        off = 100 * abs(predicted / measured - 1)
        goal = "<= 5" if name == "second" else None
        report.add(f"{on}: {name} prediction is off by", off, "%", goal)
        report.notes.append(
            f"{on}, {name}: {shape(plan)}, predicted {predicted:,.0f} samples/s, "
            f"measured {measured:,.0f}."
        )


def main() -> None:
    """Run what is not there yet, then compare."""
    options = parse()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    report = Report("second_run", "A second run, planned from the first one's own times")
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as temporary:
        for on in options.only:
            with place(on):
                add_to(report, on, run_twice(on, options.folder or Path(temporary)))
    report.finish(options.json)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = standard_options(__doc__)
    parser.add_argument("--only", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--folder", type=Path, help="keep runs here, and continue from it")
    options = parser.parse_args()
    if options.quick:
        options.only = ["local"]
    return options


if __name__ == "__main__":
    main()
