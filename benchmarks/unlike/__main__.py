"""Predicted against measured throughput on clusters whose nodes really differ.

    python -m benchmarks.unlike [--quick] [--json FILE] [--folder F] [--stop-after SECONDS]

For every shipped cluster of unlike nodes: `measure --on slurm` of two workloads, then layouts of
one to three stages and one to five ranks, one after the other in one Slurm job on all nodes. Needs
root. With --folder results are kept, and a benchmark that was stopped continues there.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.record import Report, standard_options
from benchmarks.unlike.cases import CLUSTERS, LAYOUTS, QUICK, WORKS
from benchmarks.unlike.judge import PricedPrediction, judge
from benchmarks.unlike.runs import Bench, LayoutRun, cluster_up, pools_of
from heterps_hpc.cluster import Cluster
from heterps_hpc.profile import Profile

log = logging.getLogger(__name__)

MEASURING_SECONDS = 60.0  # of one workload
ENDING_SECONDS = 15.0


def main() -> None:
    """Run what is not there yet, then judge what is."""
    options = parse()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    report = Report("unlike", "Predicted against measured throughput on unlike nodes")
    with tempfile.TemporaryDirectory(prefix="hu-", dir="/tmp") as temporary:
        folder = options.folder or Path(temporary)
        for name in options.clusters:
            judge(report, name, run_cluster(name, folder, options))
    report.finish(options.json)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = standard_options(__doc__)
    parser.add_argument("--clusters", nargs="+", default=CLUSTERS, choices=CLUSTERS)
    parser.add_argument("--works", nargs="+", default=[work.name for work in WORKS])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, each run")
    parser.add_argument("--folder", type=Path, help="keep runs here, and continue from it")
    parser.add_argument("--stop-after", type=float, default=1e9, help="seconds; then start no run")
    options = parser.parse_args()
    if options.quick:
        options.clusters, options.repeats, options.seconds = CLUSTERS[:1], 1, 15.0
    options.stop_at = time.monotonic() + options.stop_after
    return options


def run_cluster(name: str, folder: Path, options: argparse.Namespace) -> list[PricedPrediction]:
    """Measure and run what is not there yet, then compare; the cluster is started only for that."""
    benches = [Bench(name, work, folder) for work in WORKS if work.name in options.works]
    layouts = {
        bench: [t for t in LAYOUTS[name][bench.work.name] if not options.quick or t in QUICK]
        for bench in benches
    }
    repeats = range(options.repeats)
    wanted = [
        (b, LayoutRun(text, repeat)) for repeat in repeats for b in benches for text in layouts[b]
    ]
    todo = [(bench, run) for bench, run in wanted if not bench.is_done(run)]
    if todo or not all(bench.profile_path.exists() for bench in benches):
        with cluster_up(name) as cluster:
            launcher = benches[0].one_job(cluster)
            for bench in benches:
                _stop_in_time(options, 0 if bench.profile_path.exists() else MEASURING_SECONDS)
                bench.measure(cluster, launcher)
            for bench, run in todo:
                _stop_in_time(options, options.seconds + ENDING_SECONDS)
                bench.train(cluster, launcher, run, options.seconds)
            launcher.end()
    return [
        _case(bench, pools_of(name), text, repeats) for bench in benches for text in layouts[bench]
    ]


def _case(bench: Bench, cluster: Cluster, text: str, repeats: range) -> PricedPrediction:
    estimate = bench.predict(cluster, Profile.load(bench.profile_path), text)
    rates = [bench.rate(LayoutRun(text, repeat)) for repeat in repeats]
    log.warning(
        "%s %s %s: %s measured, %.0f predicted",
        bench.cluster_name,
        bench.work.name,
        text,
        " ".join(f"{rate:.0f}" for rate in rates),
        estimate.samples_per_second,
    )
    return PricedPrediction(
        bench.work.name,
        text,
        estimate.samples_per_second,
        statistics.median(rates),
        estimate.money_per_hour,
    )


def _stop_in_time(options: argparse.Namespace, needed: float) -> None:
    if time.monotonic() + needed > options.stop_at:
        raise SystemExit("stopped, as asked; call it again with the same folder to continue")


if __name__ == "__main__":
    main()
