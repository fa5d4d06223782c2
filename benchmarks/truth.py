"""Predicted against measured throughput: the test of the cost model is reality.

    python -m benchmarks.truth [--quick] [--json FILE] [--runs N] [--judged] [--folder F]

Measures a profile of each workload on this machine (two pools, which are this machine's cores),
predicts layouts of one to three stages, runs them with the trainer, and compares. Layouts with
more busy ranks than cores are printed but not judged; with --judged they are left out. Each of
several runs measures everything anew and is judged by itself. With --folder, runs that are there
are not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import statistics
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.peers import cache_folder
from benchmarks.predictions import Prediction, comparison, kendall_tau
from benchmarks.record import Report
from benchmarks.train.contenders import ours
from benchmarks.train.ours import make_job, parse_stages
from benchmarks.train.workload import W1, W2, Workload, ready_data
from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.measure import measure
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.plan.cost_model import Choice, StageTable, estimate
from heterps_hpc.plan.problem import make_problem
from heterps_hpc.profile import Profile
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

MICRO_BATCHES = 4
LAYOUTS = (
    "*:1",
    "*:2",
    "1:1,*:1",
    "2:1,*:1",
    "3:1,*:1",
    "1:2,*:1",
    "1:1,*:2",
    "1:1,2:1,*:1",
    "2:2,*:2",
)
QUICK = ("*:1", "*:2", "1:1,*:1", "2:1,*:1")


@dataclass(frozen=True)
class TruthCase(Prediction):
    """A layout, and whether this machine has a core for each of its ranks."""

    num_ranks: int


def cluster_of(num_pools: int) -> Cluster:
    """This machine as several pools."""
    pools = [
        {
            "name": f"pool{number}",
            "price_per_hour": 1.0,
            "max_ranks": 4,
            "cores_per_node": _num_cores(),
            "memory_per_node_gb": 16,
        }
        for number in range(num_pools)
    ]
    return Cluster.parse({"pools": pools}, "truth")


def take_profile(work: Workload, data: Path) -> Profile:
    """Measure one pool; the others are the same cores, so they get the same figures."""
    job = make_job(work, data, MICRO_BATCHES, 1)
    with tempfile.TemporaryDirectory() as folder:
        profile = measure(job, cluster_of(1), RunDir(folder).create(), LocalLauncher(), again=True)
    for number in (1, 2):
        name = f"pool{number}"
        twin = profile.model_copy(
            update={
                "timings": tuple(t.model_copy(update={"pool": name}) for t in profile.timings),
                "pools": tuple(p.model_copy(update={"pool": name}) for p in profile.pools),
                "links": (),
                "notes": (),
            }
        )
        profile = profile.merged(twin)
    inner = profile.links[0]
    names = [f"pool{number}" for number in range(3)]
    links = tuple(
        inner.model_copy(update={"pools": pair})
        for pair in itertools.combinations_with_replacement(names, 2)
    )
    return profile.model_copy(update={"links": links})


def predict(profile: Profile, work: Workload, text: str) -> float:
    """Samples per second by the cost model."""
    problem = make_problem(
        profile,
        cluster_of(3),
        batch_size=work.batch_size,
        num_samples=work.num_steps * work.batch_size,
        micro_batches=MICRO_BATCHES,
        staleness=1,
    )
    names = [layer.name for layer in profile.layers]
    choices = []
    first = 0
    for number, stage in enumerate(parse_stages(text, names)):
        last = first + len(stage.layers) - 1
        choices.append(Choice(first, last, number, stage.num_ranks))
        first = last + 1
    return estimate(StageTable(problem), choices).samples_per_second


def run_workload(
    work: Workload, layouts: tuple[str, ...], repeats: int, folder: Path
) -> list[TruthCase]:
    """Measure the profile, then the layouts, which take turns."""
    data = ready_data(work, folder)
    profile = take_profile(work, data)
    rates: dict[str, list[float]] = {text: [] for text in layouts}
    for _ in range(repeats):
        for text in layouts:
            rate = ours(text, MICRO_BATCHES)(work, data)["growing"]
            rates[text].append(rate)
            log.warning(
                "%s %s: %.0f measured, %.0f predicted",
                work.name,
                text,
                rate,
                predict(profile, work, text),
            )
    return [
        TruthCase(
            work.name,
            text,
            predict(profile, work, text),
            statistics.median(found),
            _num_ranks(text),
        )
        for text, found in rates.items()
    ]


def main() -> None:
    """Run what is not there yet, judge, print, write."""
    options = parse()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    report = Report("truth", "Predicted against measured throughput")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        held = [
            judge(report, run_once(folder / f"run-{number}.json", options), number, options.runs)
            for number in range(1, options.runs + 1)
        ]
    if options.runs > 1:
        report.add("runs that hold all goals", sum(held), "", f">= {options.runs}")
    report.finish(options.json)


def run_once(path: Path, options: argparse.Namespace) -> list[TruthCase]:
    """Both workloads, measured and run; kept in a file."""
    if not path.exists():
        data = cache_folder().parent / "benchmark-data"
        layouts: tuple[str, ...] = QUICK if options.quick else LAYOUTS
        if options.judged:
            layouts = tuple(text for text in layouts if _num_ranks(text) <= _num_cores())
        cases: list[TruthCase] = []
        for work in (replace(W1, settles=False), replace(W2, settles=False)):
            cases += run_workload(work, layouts, options.repeats, data)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(case) for case in cases]))
    return [TruthCase(**fields) for fields in json.loads(path.read_text())]


def judge(report: Report, cases: list[TruthCase], number: int, runs: int) -> bool:
    """The records of one run; whether it holds all goals."""
    judged = [case for case in cases if case.num_ranks <= _num_cores()]
    others = [case for case in cases if case not in judged]
    name = f"run {number}: " if runs > 1 else ""
    report.grids.append(comparison(f"{name}judged" if name else "Judged", judged))
    if others:
        report.grids.append(comparison(f"{name}not judged: more ranks than cores", others))
    errors = [100 * case.error for case in judged]
    before = len(report.records)
    report.add(f"{name}median error", statistics.median(errors), "%", "<= 10")
    report.add(f"{name}worst error", max(errors), "%", "<= 25")
    report.add(f"{name}order (Kendall's tau)", kendall_tau(judged), "", ">= 0.8")
    return all(record.met for record in report.records[before:])


def _num_ranks(text: str) -> int:
    return sum(int(part.partition(":")[2]) for part in text.split(","))


def _num_cores() -> int:
    return os.cpu_count() or 1


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--judged", action="store_true", help="leave other layouts out")
    parser.add_argument("--folder", type=Path, help="keep runs here, and continue from it")
    options = parser.parse_args()
    if options.quick:
        options.repeats = 1
    return options


if __name__ == "__main__":
    main()
