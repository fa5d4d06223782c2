"""Plans cut by money per hour and by their slowest stage: none is lost, no bound is above one."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_hpc.plan.cost_model import ROUNDING, Choice, StageTable
from heterps_hpc.plan.exact.bounds import Incumbent, make_bounds
from heterps_hpc.plan.exact.graph import make_options
from heterps_hpc.plan.exact.interval import Interval
from tests.plan.enumeration import all_plans
from tests.plan.instances import random_problem

SHAPES = [(4, 2, 3), (5, 2, 2), (4, 3, 2), (3, 2, 5)]


def _holds(interval: Interval, per_hour: float, slowest: float) -> bool:
    """Whether plans with these figures are in an interval, rounding aside."""
    low, high = interval.low * (1 - ROUNDING), interval.high * (1 + ROUNDING)
    least, largest = interval.slowest[0] * (1 - ROUNDING), interval.slowest[1] * (1 + ROUNDING)
    return low <= per_hour <= high and least <= slowest <= largest


@pytest.mark.parametrize("seed", range(12))
def test_the_best_plan_stays_in_one_of_the_parts_and_below_no_bound(seed: int) -> None:
    """The best plan under several floors, in an interval around it that is cut again and again."""
    rng = np.random.default_rng(seed)
    num_layers, num_pools, max_ranks = SHAPES[seed % len(SHAPES)]
    problem = random_problem(
        seed + 9000, num_layers=num_layers, num_pools=num_pools, max_ranks=max_ranks
    )
    plans = list(all_plans(problem))
    fastest = min(seconds for _, seconds, _ in plans)
    num_cuts = 0
    for slack in (1.02, 1.3, 3.0):
        longest = fastest * slack
        stages, seconds, per_hour = min(
            (plan for plan in plans if plan[1] <= longest), key=lambda plan: plan[1] * plan[2]
        )
        table = StageTable(problem.with_floor(problem.batch_size / longest))
        options, best = make_options(table), [Choice(*stage) for stage in stages]
        slowest = float(max(table.plan_parts(*cell).chain_max for cell in _cells(table, best)))
        incumbent = Incumbent(table, with_money=True, value=1.2 * seconds * per_hour)
        low, high = per_hour * rng.uniform(0.6, 1.0), per_hour * rng.uniform(1.0, 1.8)
        interval = Interval(low, high)
        for cut in range(8):
            bounds = make_bounds(table.problem, options, incumbent, interval)
            assert bounds is not None, (slack, cut)
            assert bounds.root <= seconds * per_hour * (1 + 1e-9), (slack, cut)
            least, largest = bounds.slowest
            assert least * (1 - ROUNDING) <= slowest <= largest * (1 + ROUNDING)
            halves = interval.cut_by_money()
            if cut % 2 and problem.micro_batches > 1 and least > 0:
                halves = interval.cut_by_slowest(bounds.slowest)
                num_cuts += 1
            kept = [half for half in halves if _holds(half, per_hour, slowest)]
            assert kept, (slack, cut)
            interval = kept[0]
    assert num_cuts or problem.micro_batches == 1 or slowest == 0


def _cells(table: StageTable, choices: list[Choice]) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in table.cells(choices)), strict=True))
