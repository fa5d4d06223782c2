"""The paper's experiments: money of each scheduler, time to schedule, provisioning rules."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from benchmarks.record import Report
from benchmarks.schedulers.questions import MODELS, ctrdnn, question
from heterps_hpc.plan.cost_model import StageTable, estimate
from heterps_hpc.plan.exact.solver import Solution, solve
from heterps_hpc.plan.provision import provision, static_ratio, static_server_ratio
from heterps_hpc.plan.schedulers import SCHEDULERS
from heterps_hpc.plan.scorer import Scorer
from heterps_hpc.plan.search import Budget, Found

SECONDS = 1.0  # of each search
EXACT_SECONDS = 30.0


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


def paper_models(report: Report) -> dict[str, list[PaperAnswer]]:
    """The four models, then depth, then pools; a set of answers for each plot."""
    speed(report)
    sets = {
        "models": [ask_paper(name, question(spec)) for name, spec in MODELS.items()],
        "depth": [ask_paper(f"ctrdnn-{n}", question(ctrdnn(n))) for n in (8, 12, 20)],
        "pools": [ask_paper(f"{n} pools", question(ctrdnn(20), n)) for n in (4, 8, 16, 32, 64)],
    }
    for answers in sets.values():
        for answer in answers:
            record_paper(report, answer)
    provisioning(report, sets["models"])
    return sets


def ask_paper(name: str, table: StageTable) -> PaperAnswer:
    """Put one question to all schedulers."""
    began = time.process_time()
    optimum = solve(table, seconds=EXACT_SECONDS)
    answer = PaperAnswer(name, table, optimum, time.process_time() - began)
    for scheduler, decide in SCHEDULERS.items():
        if scheduler != "exact":
            budget = Budget(seconds=SECONDS, seed=1, clock=time.process_time)
            answer.found[scheduler] = decide(table, budget)
    return answer


def record_paper(report: Report, answer: PaperAnswer) -> None:
    """rl against the optimum, when it found its plan, and the others."""
    report.add(f"{answer.name}: rl above optimum", answer.gap("rl"), "%", "<= 1")
    curve = answer.found["rl"].curve
    if curve:
        report.add(f"{answer.name}: rl found its plan after", curve[-1][0], "s", "<= 10")
    report.add(f"{answer.name}: exact", answer.exact_seconds, "s")
    if not answer.optimum.proven:
        report.notes.append(f"{answer.name}: not proven; gaps are above a bound.")
    for name, other in answer.found.items():
        if name != "rl" and other.choices is not None:
            report.add(f"{answer.name}: {name} above optimum", answer.gap(name), "%")


def provisioning(report: Report, answers: list[PaperAnswer]) -> None:
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
