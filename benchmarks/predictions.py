"""Predictions against measurements: how far off they are, and whether they rank layouts well."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.record import Grid

CLOSE = 0.05  # pairs nearer than this do not count for the order


@dataclass(frozen=True)
class Prediction:
    """One layout of one workload, predicted and measured."""

    work: str
    layout: str
    predicted: float  # samples/s
    measured: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return abs(self.predicted - self.measured) / self.measured


def kendall_tau(cases: Sequence[Prediction]) -> float:
    """Share of pairs in the right order minus share in the wrong one; close pairs do not count."""
    right = wrong = 0
    for one, other in itertools.combinations(cases, 2):
        if one.work != other.work or abs(one.measured / other.measured - 1) < CLOSE:
            continue
        if (one.measured - other.measured) * (one.predicted - other.predicted) > 0:
            right += 1
        else:
            wrong += 1
    return (right - wrong) / max(right + wrong, 1)


def comparison(title: str, cases: Sequence[Prediction]) -> Grid:
    """Every layout with what was predicted and measured, side by side."""
    rows = [
        (
            f"{c.work}, {c.layout}",
            c.measured,
            c.predicted,
            f"{100 * (c.predicted / c.measured - 1):+.1f}",
        )
        for c in cases
    ]
    columns = ("layout", "measured, samples/s", "predicted, samples/s", "predicted is off by, %")
    return Grid(title, columns, tuple(rows))
