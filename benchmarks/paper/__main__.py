"""The paper's experiment, run and not estimated.

    python -m benchmarks.paper --folder F [--clusters C …] [--only MODEL …] [--json FILE] [--quick]

On clusters of unlike nodes, for the paper's four models: every scheduler plans at the same floor, a
loose and a tight one. Each distinct plan runs, and so do all layers on all nodes (as data-parallel
frameworks do) and each pool alone, one after the other in one Slurm job on all nodes. Needs root.
One model on one cluster takes about four minutes; with --folder results are kept, and what is
there is not run again.
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
from benchmarks.paper.works import CLUSTERS, FLOORS, MODELS
from benchmarks.record import Grid, Report, standard_options
from benchmarks.unlike.runs import cluster_up
from heterps_hpc.planning_result import Trial

NO_PLAN = "no plan"
COLUMNS = (
    *("plan", "of", "samples/s", "predicted", "floor missed by"),
    *("$ per million samples", "predicted", "times rl's"),
)
Found = dict[tuple[str, str, float], dict[str, Trial]]  # by cluster, model and floor; by plan


def main() -> None:
    """Run what is not there yet, then table it."""
    options = parse()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    report = Report("paper", "The paper's experiment on unlike nodes, every plan run")
    found: Found = {}
    with tempfile.TemporaryDirectory(prefix="hp-", dir="/tmp") as temporary:
        folder = options.folder or Path(temporary)
        for cluster in options.clusters:
            experiments = [
                Experiment(cluster, model, floor, folder, options.seconds)
                for model in options.only
                for floor in FLOORS
            ]
            with cluster_up(cluster):
                launcher = experiments[0].one_job()
                for experiment in experiments:
                    experiment.measure(launcher)
                    trials = experiment.trials(launcher)
                    found[cluster, experiment.model, experiment.floor_share] = trials
                    where = f"{cluster}, {experiment.model}, floor {experiment.floor_share:.0%}"
                    tabulate(report, where, trials, experiment.floor)
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
    """One model on one cluster at one floor, plan by plan: most schedulers agree on a few."""
    ratios = cost_against_rl(trials)
    by_plan: dict[str, list[str]] = {}
    for name in (*ASKED, *STATIC):
        by_plan.setdefault(shape(trials[name]) if name in trials else NO_PLAN, []).append(name)
    without = by_plan.pop(NO_PLAN, [])
    rows = [
        row_of(text, ", ".join(names), trials[names[0]], floor, ratios[names[0]])
        for text, names in by_plan.items()
    ]
    for name in others(trials):
        rows.append(row_of(shape(trials[name]), name, trials[name], floor, None))
    if without:
        rows.append((NO_PLAN, ", ".join(without), *[""] * (len(COLUMNS) - 2)))
    report.grids.append(Grid(f"{where} = {floor:,.0f} samples/s", COLUMNS, tuple(rows)))


def row_of(
    text: str, who: str, trial: Trial, floor: float, ratio: float | None
) -> tuple[str | float, ...]:
    """What one plan did, beside what was predicted."""
    rate = trial.samples_per_second
    if rate is None:
        return (text, who, f"failed: {trial.failed}", *[""] * (len(COLUMNS) - 3))
    predicted = trial.plan.estimate
    million = predicted.money_per_hour / 3600 / predicted.samples_per_second * 1e6
    missed = "" if rate >= floor else f"{100 * (1 - rate / floor):.1f} %"
    cost = "" if ratio is None else ratio
    return (
        *(text, who, rate, predicted.samples_per_second, missed),
        *(money_of(trial), million, cost),
    )


def shape(trial: Trial) -> str:
    """Ranks and layers by stage, as plans are printed."""
    stages = trial.plan.stages
    return " → ".join(f"{s.pool}×{s.num_ranks} ({len(s.layers)})" for s in stages)


def others(trials: dict[str, Trial]) -> list[str]:
    """What is compared by its throughput: the fastest plan, all nodes alike, each pool alone."""
    return [name for name in trials if name not in (*ASKED, *STATIC)]


def summarise(report: Report, found: Found) -> None:
    """The two headlines: how much more a baseline costs, and how much slower others are."""
    costs = {
        f"{name} ({model} on {cluster}, floor {floor:.0%})": ratio
        for (cluster, model, floor), trials in found.items()
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
