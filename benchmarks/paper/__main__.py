"""The paper's experiment, run and not estimated.

    python -m benchmarks.paper --folder F [--clusters C …] [--only MODEL …] [--json FILE] [--quick]

On clusters of unlike nodes, for the paper's four models: every scheduler plans at the same floor,
each distinct plan runs, and so do all layers on all nodes (as data-parallel frameworks do) and each
pool alone, one after the other in one Slurm job on all nodes. Needs root. One model on one cluster
takes about four minutes; with --folder results are kept, and what is there is not run again.
"""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
from pathlib import Path

from benchmarks.paper.experiment import (
    ALL_NODES,
    ASKED,
    FASTEST,
    STATIC,
    Experiment,
    cost_against_rl,
    money_of,
)
from benchmarks.paper.picture import draw
from benchmarks.paper.works import CLUSTERS, MODELS
from benchmarks.record import Report, standard_options
from benchmarks.unlike.runs import cluster_up
from heterps_hpc.planning_result import Trial

Found = dict[tuple[str, str], dict[str, Trial]]  # by cluster and model, then by plan


def main() -> None:
    """Run what is not there yet, then table it."""
    options = parse()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    report = Report("paper", "The paper's experiment on unlike nodes, every plan run")
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="hp-", dir="/tmp") as temporary:
        folder = options.folder or Path(temporary)
        for cluster in options.clusters:
            experiments = [Experiment(cluster, m, folder, options.seconds) for m in options.only]
            with cluster_up(cluster):
                launcher = experiments[0].one_job()
                for experiment in experiments:
                    experiment.measure(launcher)
                    trials = experiment.trials(launcher)
                    found[cluster, experiment.model] = trials
                    tabulate(report, f"{cluster}, {experiment.model}", trials, experiment.floor)
                launcher.end()
    summarise(report, found)
    if options.picture is not None:
        draw(found, options.picture)
    report.finish(options.json)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = standard_options(__doc__)
    parser.add_argument("--clusters", nargs="+", default=list(CLUSTERS), choices=CLUSTERS)
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=MODELS, metavar="MODEL")
    parser.add_argument("--seconds", type=float, default=25.0, help="of training, each plan")
    parser.add_argument("--folder", type=Path, help="keep runs here, and continue from it")
    parser.add_argument("--picture", type=Path, help="draw it here (PNG)")
    options = parser.parse_args()
    if options.quick:
        options.clusters, options.only, options.seconds = ["slow-and-fast"], ["ctrdnn"], 4.0
    return options


def tabulate(report: Report, where: str, trials: dict[str, Trial], floor: float) -> None:
    """One model on one cluster."""
    report.add(f"{where}: floor", floor, "samples/s")
    ratios = cost_against_rl(trials)
    for name in (*ASKED, *STATIC):
        if name not in trials:
            report.notes.append(f"{where}: {name} found no plan at the floor.")
            continue
        trial = trials[name]
        rate = trial.samples_per_second
        if rate is None:
            report.notes.append(f"{where}: {name}'s plan failed: {trial.failed}.")
            continue
        if rate < floor:
            report.notes.append(
                f"{where}: {name}'s plan ran {100 * (1 - rate / floor):.1f} % below the floor."
            )
        predicted = trial.plan.estimate
        million = predicted.money_per_hour / 3600 / predicted.samples_per_second * 1e6
        report.add(f"{where}: {name}, money per million samples", money_of(trial), "$")
        report.add(f"{where}: {name}, predicted money per million samples", million, "$")
        report.add(f"{where}: {name}, throughput", rate, "samples/s")
        report.add(
            f"{where}: {name}, predicted throughput", predicted.samples_per_second, "samples/s"
        )
        report.add(f"{where}: {name}, cost over rl's", ratios[name], "times")
    for name in others(trials):
        rate = trials[name].samples_per_second
        if rate is not None:
            report.add(f"{where}: {name}, throughput", rate, "samples/s")
            report.add(f"{where}: {name}, money per million samples", money_of(trials[name]), "$")


def others(trials: dict[str, Trial]) -> list[str]:
    """What is compared by its throughput: the fastest plan, all nodes alike, each pool alone."""
    return [name for name in trials if name not in (*ASKED, *STATIC)]


def summarise(report: Report, found: Found) -> None:
    """The two headlines: how much more a baseline costs, and how much slower others are."""
    costs = {
        f"{name} ({model} on {cluster})": ratio
        for (cluster, model), trials in found.items()
        for name, ratio in cost_against_rl(trials).items()
        if math.isfinite(ratio)
    }
    if costs:
        worst = max(costs, key=costs.__getitem__)
        report.add(f"most expensive baseline over rl: {worst}", costs[worst], "times")
    gains: dict[str, list[float]] = {}
    for trials in found.values():
        best = trials[FASTEST].samples_per_second
        for name in others(trials):
            rate = trials[name].samples_per_second
            if name != FASTEST and best and rate:
                gains.setdefault(name, []).append(best / rate)
    for name, values in gains.items():
        what = "on the same nodes" if name == ALL_NODES else "without splitting"
        report.add(f"fastest plan over {name} ({what}), largest", max(values), "times")
        report.add(f"fastest plan over {name} ({what}), least", min(values), "times")


if __name__ == "__main__":
    main()
