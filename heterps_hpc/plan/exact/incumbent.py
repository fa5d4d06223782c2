"""The best valid plan so far, which every part of the exact search tries to beat."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_hpc.plan.cost_model import (
    Choice,
    StageTable,
    batch_seconds,
    hourly_price,
    within_limits,
)
from heterps_hpc.plan.problem import Problem


@dataclass
class Incumbent:
    """The best valid plan so far; `value` is T · C, or T where money does not matter."""

    problem: Problem
    with_money: bool
    value: float = float("inf")
    choices: tuple[Choice, ...] | None = None

    def offer(self, seconds: float, per_hour: float, choices: tuple[Choice, ...]) -> None:
        """Keep the plan if it is better."""
        value = seconds * per_hour if self.with_money else seconds
        if value < self.value:
            self.value, self.choices = value, choices


def offer(table: StageTable, incumbent: Incumbent, choices: tuple[Choice, ...]) -> None:
    """Let a plan become the best so far, if it is valid."""
    problem = table.problem
    cells = [(table.pair(c), c.pool, table.column(c.ranks)) for c in choices]
    if not all(table.fits[cell] for cell in cells) or not within_limits(problem, choices):
        return
    et = [float(table.ET[cell]) for cell in cells]
    seconds = batch_seconds(problem, et, [bool(table.in_sum[cell[0]]) for cell in cells])
    if seconds <= problem.longest_batch * (1 + 1e-12):
        incumbent.offer(seconds, hourly_price(problem, choices), choices)
