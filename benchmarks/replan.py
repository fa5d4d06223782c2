"""A job that was planned from a wrong profile finds out while it runs: what that costs in all.

    python -m benchmarks.replan --folder F [--parts measure best replanned] [--json FILE] [--quick]

On the unlike nodes of slow-and-fast. The wrong profile claims that slow ranks scale perfectly, so
that several of them are planned where one fast rank is right. Compared with the same job on the
best layout from the start: money in all, and what was learned. Needs root. Each part takes two to
four minutes; with --folder results are kept, and what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.paper.works import make_job
from benchmarks.record import Report, standard_options
from benchmarks.unlike.runs import cluster_up
from heterps_hpc import events
from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.launch import start
from heterps_hpc.commands.measure import measure
from heterps_hpc.commands.plan import plan
from heterps_hpc.commands.prepare import ready_data
from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.slurm.launcher import SlurmLauncher
from heterps_hpc.layout import Layout
from heterps_hpc.plan.explain import best_throughput
from heterps_hpc.plan.problem import problem_of_job
from heterps_hpc.profile import Profile
from heterps_hpc.report.inputs import read_run
from heterps_hpc.report.outcome import shape
from heterps_hpc.report.spending import spending
from heterps_hpc.rundir import RunDir

PARTS = ("measure", "best", "replanned")
FLOOR = 0.55  # of the best throughput, by the measured profile: clearly more than slow ranks do
AFTER_MINUTES = 0.4


@dataclass(frozen=True)
class Demonstration:
    """The two runs of one job, and the profile that only the first is planned from."""

    folder: Path
    train_seconds: float
    cluster: Cluster

    def profile(self) -> Profile:
        """As measured, once."""
        run = RunDir(self.folder / "measured").create()
        if not run.profile.exists():
            job = self.any_length()
            ready_data(job)
            measure(job, self.cluster, run, SlurmLauncher()).save(run.profile)
        return Profile.load(run.profile)

    def any_length(self) -> Job:
        """In float64: learning by heart amplifies what ranks round differently in float32, and
        what is to be seen is whether a change of the layout changes anything else."""
        job = make_job("ctrdnn", self.folder / "data", 20.0)
        train = job.train.model_copy(update={"precision": "float64"})
        return job.model_copy(update={"train": train})

    def job(self, *, replan: bool) -> Job:
        """As long as the best layout trains for the given time."""
        job = self.any_length()
        best = best_throughput(problem_of_job(self.profile(), self.cluster, job, 1e6))
        assert best is not None
        rate = best.samples_per_second
        steps = round(self.train_seconds * rate / job.train.batch_size)
        plan = {"scheduler": "exact", "replan_after_minutes": AFTER_MINUTES if replan else None}
        train = {"steps": steps, "epochs": None, "evaluate_at_end": False}
        return job.model_copy(
            update={
                "train": job.train.model_copy(update=train),
                "plan": job.plan.model_copy(update=plan),
                "goal": job.goal.model_copy(
                    update={"min_samples_per_second": FLOOR * rate, "min_fraction_of_best": None}
                ),
            }
        )

    def run(self, name: str) -> RunDir:
        """Plan from the right or the wrong profile and train to the end, once."""
        run = RunDir(self.folder / name).create()
        last = events.read(run).last(events.Ended)
        if last is not None and last.code == ExitCode.DONE:
            return run
        job = self.job(replan=name == "replanned")
        profile = self.profile() if name == "best" else scales_perfectly(self.profile(), "slow")
        job.save(run.job)
        self.cluster.save(run.cluster)
        profile.save(run.profile)
        layout = plan(job, self.cluster, run)
        layout.save(run.path / "first-layout.json")
        request = LaunchRequest(run, layout, job, self.cluster)
        code = start(SlurmLauncher(poll_seconds=0.5), request)
        if code != ExitCode.DONE:
            raise RuntimeError(f"{name} ended with code {int(code)}: {run.logs}")
        return run


def scales_perfectly(profile: Profile, pool: str) -> Profile:
    """What a profile says if nobody measured more than one rank of a pool."""
    timings = tuple(
        timing.model_copy(update={"compute_parallel": 1.0}) if timing.pool == pool else timing
        for timing in profile.timings
    )
    free = {"reduce_seconds_per_byte": 0.0, "reduce_latency_seconds": 0.0, "batch_seconds": 0.0}
    pools = tuple(
        each.model_copy(update=free) if each.pool == pool else each for each in profile.pools
    )
    links = tuple(
        link.model_copy(update={"bytes_per_second": 1e12}) if set(link.pools) == {pool} else link
        for link in profile.links
    )
    return profile.model_copy(update={"timings": timings, "pools": pools, "links": links})


def money(run: RunDir) -> float:
    """$ that a run's nodes cost, all starts together."""
    spent = spending(read_run(run))
    assert spent is not None
    return spent.money


def losses(run: RunDir) -> np.ndarray:
    """The lines of training, as far as both runs have them."""
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return np.array([line["loss"] for line in lines if line["kind"] == "train"])


def compare(report: Report, best: RunDir, replanned: RunDir) -> None:
    """Money in all, and what was learned."""
    first = Layout.load(replanned.path / "first-layout.json").plan
    last, right = Layout.load(replanned.layout).plan, Layout.load(best.layout).plan
    assert first is not None
    assert last is not None
    assert right is not None
    again = events.read(replanned).last(events.PlannedAgain)
    report.notes.append(
        f"Planned {shape(first)}, continued on {shape(last)}; the best layout is {shape(right)}."
    )
    report.add("money on the best layout from the start", money(best), "$")
    report.add("money from the wrong profile, re-planned", money(replanned), "$")
    ratio = money(replanned) / money(best)
    report.add("re-planned over best", ratio, "times", "<= 1.15")
    report.add("layouts changed", 0.0 if again is None else 1.0, "", ">= 1")
    one, other = losses(best), losses(replanned)
    apart = float(np.abs(one - other).max()) if one.shape == other.shape else np.inf
    report.add("largest difference of a line's loss", apart, "", "<= 0.001")


def main() -> None:
    """Run what is not there yet, then compare."""
    options = parse()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    report = Report("replan", "A job from a wrong profile that is re-planned while it runs")
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as temporary:
        with cluster_up("slow-and-fast") as cluster:
            folder = options.folder or Path(temporary)
            demonstration = Demonstration(folder, options.seconds, cluster)
            if "measure" in options.parts:
                demonstration.profile()
            runs = {n: demonstration.run(n) for n in ("best", "replanned") if n in options.parts}
        if len(runs) == 2:
            compare(report, runs["best"], runs["replanned"])
    report.finish(options.json)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = standard_options(__doc__)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seconds", type=float, default=150.0, help="of training, best layout")
    parser.add_argument("--folder", type=Path, help="keep runs here, and continue from it")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 40.0
    return options


if __name__ == "__main__":
    main()
