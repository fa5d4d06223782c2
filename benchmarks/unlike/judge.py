"""How good the predictions were: errors, order, and the money of the plan that they lead to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.predictions import Prediction, comparison, kendall_tau
from benchmarks.record import Report

FLOOR = 0.5  # of the best throughput: the question that the chosen layout answers


@dataclass(frozen=True)
class PricedPrediction(Prediction):
    """A layout with its price."""

    price: float  # $/hour of its ranks

    @property
    def money(self) -> float:
        """$ per million samples, really."""
        return self.price / 3600 / self.measured * 1e6


def money_over_best(cases: Sequence[PricedPrediction]) -> float:
    """Money of the layout that predictions choose, relative to the best that was run; of one work.

    Both must really reach the floor, which is half of the best measured throughput.
    """
    floor = FLOOR * max(case.measured for case in cases)
    enough = [case for case in cases if case.predicted >= floor]
    best = min(case.money for case in cases if case.measured >= floor)
    if not enough:
        return float("inf")
    chosen = min(enough, key=lambda case: case.price / case.predicted)
    return chosen.money / best - 1 if chosen.measured >= 0.95 * floor else float("inf")


def judge(report: Report, cluster: str, cases: Sequence[PricedPrediction]) -> None:
    """All records of one cluster."""
    report.grids.append(comparison(cluster, cases))
    errors = [100 * case.error for case in cases]
    report.add(f"{cluster}: median error", statistics.median(errors), "%", "<= 10")
    report.add(f"{cluster}: worst error", max(errors), "%", "<= 25")
    report.add(f"{cluster}: order (Kendall's tau)", kendall_tau(cases), "", ">= 0.9")
    works = dict.fromkeys(case.work for case in cases)
    excess = max(money_over_best([case for case in cases if case.work == work]) for work in works)
    report.add(f"{cluster}: chosen layout's money over the best's", 100 * excess, "%", "<= 5")
