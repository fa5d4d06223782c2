"""The paper's experiments: money of each scheduler, time to schedule, provisioning rules."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from benchmarks.record import Grid, Report
from benchmarks.schedulers.questions import MODELS, ctrdnn, question
from heterps_hpc.plan.cost_model import StageTable, estimate
from heterps_hpc.plan.exact.solver import Solution, solve
from heterps_hpc.plan.provision import provision, static_ratio, static_server_ratio
from heterps_hpc.plan.schedulers import SCHEDULERS
from heterps_hpc.plan.scorer import Scorer
from heterps_hpc.plan.search import Budget, Found

SECONDS = 1.0  # of each search
EXACT_SECONDS = 30.0
LAYERS = (8, 12, 16, 20)  # as in the paper,
POOLS = (2, 4, 8, 16, 32, 64)


@dataclass
class PaperAnswer:
    """What every scheduler made of one question."""

    name: str
    table: StageTable
    optimum: Solution
    exact_seconds: float
    found: dict[str, Found] = field(default_factory=dict)

    def gap(self, scheduler: str) -> float:
        """Per cent above the optimum (or above its proven bound); rounding is not a gain."""
        gap = 100 * (self.found[scheduler].money / self.optimum.bound - 1)
        return 0.0 if abs(gap) < 1e-4 else gap

    @property
    def exact_gap(self) -> float:
        """Per cent of the exact solver's plan above its bound."""
        return 100 * (self.optimum.value / self.optimum.bound - 1)

    def seconds(self, scheduler: str) -> float:
        """Until it found its plan."""
        curve = self.found[scheduler].curve
        return curve[-1][0] if curve else math.inf


def paper_models(report: Report) -> dict[str, list[PaperAnswer]]:
    """The four models, then depth, then pools; a set of answers for each plot."""
    speed(report)
    sets = {
        "model": [ask_paper(name, question(spec)) for name, spec in MODELS.items()],
        "layers (ctrdnn, 2 pools)": [ask_paper(str(n), question(ctrdnn(n))) for n in LAYERS],
        "pools (ctrdnn-20)": [ask_paper(str(n), question(ctrdnn(20), n)) for n in POOLS],
    }
    everything = [answer for answers in sets.values() for answer in answers]
    worst = max(answer.gap("rl") for answer in everything)
    report.add("paper's models: rl above the optimum, worst", worst, "%", "<= 1")
    slowest = max(answer.seconds("rl") for answer in everything)
    report.add("paper's models: rl found its plan after, slowest", slowest, "s", "<= 10")
    report.grids.extend(paper_grid(title, answers) for title, answers in sets.items())
    report.grids.append(provisioning(report, sets["model"]))
    return sets


def ask_paper(name: str, table: StageTable) -> PaperAnswer:
    """Put one question to all schedulers."""
    began = time.process_time()
    optimum = solve(table, seconds=EXACT_SECONDS, clock=time.process_time)
    answer = PaperAnswer(name, table, optimum, time.process_time() - began)
    for scheduler, decide in SCHEDULERS.items():
        if scheduler != "exact":
            budget = Budget(seconds=SECONDS, seed=1, clock=time.process_time)
            answer.found[scheduler] = decide(table, budget)
    return answer


def paper_grid(title: str, answers: list[PaperAnswer]) -> Grid:
    """The gap of every scheduler, and how long it took to find its plan."""
    rows = [("exact", *(f"{a.exact_gap:,.2f} ({a.exact_seconds:.2g} s)" for a in answers))]
    for name in answers[0].found:
        cells = [
            f"{answer.gap(name):,.2f} ({answer.seconds(name):.2g} s)"
            if answer.found[name].choices is not None
            else "–"
            for answer in answers
        ]
        rows.append((name, *cells))
    names = [a.name if a.optimum.proven else f"{a.name} (above a bound)" for a in answers]
    return Grid(
        f"The paper's experiment by {title}: money above the optimum in % (and time to schedule)",
        ("scheduler", *names),
        tuple(rows),
    )


def provisioning(report: Report, answers: list[PaperAnswer]) -> Grid:
    """Exact ranks against the two static rules, for the placement of the optimum."""
    rows, least = [], math.inf
    for answer in answers:
        assert answer.optimum.choices is not None
        placement = [c.pool for c in answer.optimum.choices for _ in range(c.first, c.last + 1)]
        began = time.process_time()
        exact = provision(answer.table, placement)
        took = time.process_time() - began
        row = [answer.name, 1e3 * took]
        for rule in (static_ratio, static_server_ratio):
            choices = rule(answer.table, placement)
            if choices is None:
                row.append("–")
                continue
            above = 100 * (estimate(answer.table, choices).money / exact.value - 1)
            least = min(least, above)
            row.append(f"{above:,.2f}")
        rows.append(tuple(row))
    report.add("StaRatio and StaPSRatio above exact provisioning, least", least, "%", ">= 0")
    return Grid(
        "Provisioning of the optimum's placement: the paper's static rules above exact, in %",
        ("model", "exact, no start given, ms", "StaRatio", "StaPSRatio"),
        tuple(rows),
    )


def speed(report: Report) -> None:
    """Placements provisioned and scored per second of one core."""
    scorer = Scorer(question(MODELS["ctrdnn-16"]))
    placements = np.random.default_rng(0).integers(0, 2, size=(5_000, 16))
    scorer.score(placements)
    times = []
    for _ in range(3):
        began = time.process_time()
        scorer.score(placements)
        times.append(time.process_time() - began)
    rate = len(placements) / float(np.median(times))
    report.add("placements provisioned, 16 layers x 2 pools", rate, "1/s")
