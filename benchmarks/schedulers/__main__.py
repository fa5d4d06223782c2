"""The paper's experiments: money of each scheduler, time to schedule, provisioning rules.

    python -m benchmarks.schedulers [--quick] [--json FILE] [--seconds S]

No scheduler is told the optimum here: searching ones use their budget, or end by themselves.
`rl` scores the placements of the simple rules first; "rl alone" is the policy without them.
`--quick` asks the four models with two pools, and rl, greedy and the heuristic only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.record import Report, standard_options
from benchmarks.schedulers.plots import plot
from benchmarks.schedulers.questions import MODELS, ctrdnn, question
from heterps_hpc.plan.cost_model import StageTable, estimate
from heterps_hpc.plan.exact.solver import Solution, solve
from heterps_hpc.plan.policy import reinforce
from heterps_hpc.plan.provision import provision, static_ratio, static_server_ratio
from heterps_hpc.plan.schedulers import SCHEDULERS
from heterps_hpc.plan.scorer import Scorer
from heterps_hpc.plan.search import Budget, Found

CERTIFIED = ("exact", "brute-force")
ALONE = "rl alone"
QUICK = ("rl", ALONE, "greedy", "heuristic")
MORE_SECONDS = 4.0  # rl's budget grows by this factor on more than two pools (the goal: 60 s)


@dataclass
class Answer:
    """What every scheduler made of one question."""

    name: str
    table: StageTable
    optimum: Solution
    exact_seconds: float
    found: dict[str, Found] = field(default_factory=dict)

    def gap(self, scheduler: str) -> float:
        """Per cent above the optimum (or above its proven bound); rounding is not a gain."""
        gap = 100 * (self.found[scheduler].money / self.optimum.bound - 1)
        return 0.0 if abs(gap) < 1e-7 else gap


def ask(name: str, table: StageTable, schedulers: tuple[str, ...], seconds: float) -> Answer:
    """Put one question to all schedulers."""
    began = time.process_time()
    optimum = solve(table, seconds=300)
    answer = Answer(name, table, optimum, time.process_time() - began)
    for scheduler in schedulers:
        learned = scheduler in ("rl", ALONE)
        longer = MORE_SECONDS if learned and table.problem.num_pools > 2 else 1.0
        budget = Budget(seconds=seconds * longer, seed=1, clock=time.process_time)
        decide = alone if scheduler == ALONE else SCHEDULERS[scheduler]
        answer.found[scheduler] = decide(table, budget)
    return answer


def alone(table: StageTable, budget: Budget) -> Found:
    """What the policy finds if no rule gives it a start."""
    return reinforce(table, budget, "lstm", simple_rules=False)


def show(answers: list[Answer], title: str) -> None:
    """Money and seconds of every scheduler on every question."""
    names = list(answers[0].found)
    grid = Table(title=title, title_justify="left")
    grid.add_column("scheduler")
    for answer in answers:
        grid.add_column(answer.name, justify="right")
    bounds = [f"{a.optimum.bound:.3f} $ ({a.exact_seconds:.1f} s)" for a in answers]
    grid.add_row("optimum" if all(a.optimum.proven for a in answers) else "bound", *bounds)
    for name in names:
        cells = []
        for answer in answers:
            found = answer.found[name]
            cut = "" if found.complete else ", cut off"
            at = found.curve[-1][0] if found.curve else found.seconds
            cells.append(
                "no plan"
                if found.choices is None
                else f"+{answer.gap(name):.2f} % ({at:.1f} s{cut})"
            )
        grid.add_row(name, *cells)
    Console(width=200).print(grid)


def judge(report: Report, answers: list[Answer], limit_percent: float, seconds: float) -> None:
    """rl against the optimum and against every rival that is not certified."""
    for answer in answers:
        found = answer.found["rl"]
        goal = f"<= {limit_percent + 1e-6}"
        report.add(f"{answer.name}: rl above optimum", answer.gap("rl"), "%", goal)
        reached = found.curve[-1][0] if found.curve else float("inf")
        report.add(f"{answer.name}: rl found its plan after", reached, "s", f"<= {seconds:g}")
        report.add(f"{answer.name}: exact", answer.exact_seconds, "s")
        if not answer.optimum.proven:
            report.notes.append(f"{answer.name}: not proven; gaps are above a bound.")
        mine = (*CERTIFIED, "rl", ALONE)
        rivals = {n: f.money for n, f in answer.found.items() if n not in mine}
        worst = max(100 * (found.money / money - 1) for money in rivals.values())
        report.add(f"{answer.name}: rl above its best rival", worst, "%", "<= 1e-6")
        for name, rival in answer.found.items():
            if name != "rl" and rival.choices is not None:
                cut = "" if rival.complete else " (cut off)"
                report.add(f"{answer.name}: {name} above optimum{cut}", answer.gap(name), "%")


def provisioning(report: Report, answers: list[Answer]) -> None:
    """Exact ranks against the two static rules, for the placement of the optimum."""
    for answer in answers:
        assert answer.optimum.choices is not None
        placement = [c.pool for c in answer.optimum.choices for _ in range(c.first, c.last + 1)]
        began = time.process_time()
        exact = provision(answer.table, placement)
        took = time.process_time() - began
        report.add(f"{answer.name}: exact provisioning, no start given", 1e3 * took, "ms")
        for name, rule in (("StaRatio", static_ratio), ("StaPSRatio", static_server_ratio)):
            choices = rule(answer.table, placement)
            if choices is None:
                report.notes.append(f"{answer.name}: {name} reaches no valid plan")
                continue
            above = 100 * (estimate(answer.table, choices).money / exact.value - 1)
            report.add(f"{answer.name}: {name} above exact provisioning", above, "%", ">= 0")


def speed(report: Report) -> None:
    """Placements scored per second of one core, provisioning included."""
    scorer = Scorer(question(MODELS["ctrdnn-16"]))
    placements = np.random.default_rng(0).integers(0, 2, size=(20_000, 16))
    scorer.score(placements)
    times = []
    for _ in range(5):
        began = time.process_time()
        scorer.score(placements)
        times.append(time.process_time() - began)
    rate = len(placements) / float(np.median(times))
    report.add("placements scored, 16 layers x 2 pools", rate, "1/s", ">= 100000")


def main() -> None:
    """Run all experiments."""
    parser = standard_options(__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="budget of each search")
    options = parser.parse_args()
    every = ("rl", ALONE, *(name for name in SCHEDULERS if name not in ("rl", "exact")))
    schedulers = QUICK if options.quick else every
    seconds = 3.0 if options.quick else options.seconds
    report = Report("schedulers", "Schedulers: money above the certified optimum")
    speed(report)
    models = [ask(n, question(spec), schedulers, seconds) for n, spec in MODELS.items()]
    show(models, "the paper's models, CPU cores + V100s")
    judge(report, models, 0.0, 10.0)
    provisioning(report, models)
    sets = {"models": models}
    if not options.quick:
        deep = [
            ask(f"ctrdnn-{depth}", question(ctrdnn(depth)), schedulers, seconds)
            for depth in (8, 12, 20)
        ]
        show(deep, "depth")
        judge(report, deep, 0.0, 10.0)
        wide = [
            ask(f"{num} pools", question(ctrdnn(20), num), schedulers, seconds)
            for num in (4, 8, 16, 32, 64)
        ]
        show(wide, "ctrdnn-20 on simulated pools")
        judge(report, wide, 1.0, 60.0)
        sets |= {"depth": deep, "pools": wide}
    report.notes.append(
        f"Each search had {seconds:g} s (rl {MORE_SECONDS:g} times that on more than two pools) "
        "of one core and did not know the optimum. Seconds are CPU seconds of one thread. "
        "rl scores the simple rules' placements first; `rl alone` is its policy without them."
    )
    report.finish(options.json)
    if options.json is not None:
        plot(sets, Path(options.json).with_suffix(".png"))


if __name__ == "__main__":
    main()
