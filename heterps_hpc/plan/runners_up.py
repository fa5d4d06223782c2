"""Runner-up plans: the best ones with another placement or without a pool, and why they lose."""

from __future__ import annotations

import time
from collections.abc import Sequence

from heterps_hpc.layout import Estimate, Plan
from heterps_hpc.plan.cost_model import Choice, StageTable, estimate, stages_of, to_plan
from heterps_hpc.plan.exact.solver import Solution, solve
from heterps_hpc.validation import Value

SECONDS = 4.0  # for all runner-up plans of one question together
EQUAL = 5e-4


class RunnerUp(Value):
    """A plan that was not taken."""

    what: str
    plan: Plan
    loses: str


def runners_up(
    table: StageTable, chosen: Sequence[Choice], seconds: float = SECONDS
) -> list[RunnerUp]:
    """The next best placement, and the best plan without each pool that the chosen one uses."""
    deadline = time.monotonic() + seconds
    found: dict[str, Solution] = {}
    names = table.problem.pools.names
    pools = list(dict.fromkeys(choice.pool for choice in chosen))
    if table.problem.num_pools > 1:
        found["next best placement"] = next_placement(table, chosen, deadline)
        for pool in pools:
            asked = StageTable(table.problem.without_pool(pool))
            left = max(0.2, deadline - time.monotonic())
            found[f"best without {names[pool]}"] = solve(asked, seconds=left)
    runners: dict[tuple[Choice, ...], RunnerUp] = {}
    for what, solution in found.items():
        if solution.choices is None:
            continue
        plan = to_plan(table, solution.choices, "exact")
        plan = plan.model_copy(update={"gap_is_bound": not solution.proven})
        if solution.choices in runners:
            what = f"{runners[solution.choices].what}, {what}"
        loses = why(plan.estimate, estimate(table, chosen))
        runners[solution.choices] = RunnerUp(what=what, plan=plan, loses=loses)
    return sorted(runners.values(), key=lambda runner: runner.plan.estimate.money)


def next_placement(table: StageTable, chosen: Sequence[Choice], deadline: float) -> Solution:
    """The best plan of all that put at least one layer elsewhere; exact unless time runs out.

    Such a plan moves some layer off its pool, so the best of "layer i elsewhere" over all i is it.
    Each question starts from the best answer so far, and has only to beat that.
    """
    placement = [choice.pool for choice in chosen for _ in range(choice.first, choice.last + 1)]
    every = [
        (first, last, pool)
        for first, last in table.pairs.tolist()
        for pool in range(table.problem.num_pools)
    ]
    best = Solution(None, float("inf"), float("inf"), True)
    proven = True
    for layer in _by_cut(placement):
        left = deadline - time.monotonic()
        if left <= 0:
            proven = False
            break
        own = placement[layer]
        runs = [run for run in every if not (run[0] <= layer <= run[1] and run[2] == own)]
        answer = solve(table, runs=runs, start=best.choices, seconds=left)
        proven &= answer.proven
        if answer.choices is not None:
            best = answer
    return Solution(best.choices, best.value, best.bound, proven)


def _by_cut(placement: list[int]) -> list[int]:
    """The layers, those at the ends of stages first: a near rival soon makes the rest quick."""
    ends = [layer for first, last, _ in stages_of(placement) for layer in (first, last)]
    return list(dict.fromkeys([*ends, *range(len(placement))]))


def why(rival: Estimate, chosen: Estimate) -> str:
    """What makes a plan dearer: money is hours times $/hour."""
    hours = rival.hours / chosen.hours - 1
    price = rival.money_per_hour / chosen.money_per_hour - 1
    if abs(rival.money / chosen.money - 1) < EQUAL / 10:
        return "costs the same"
    more = f"{abs(price):.1%} {'more' if price > 0 else 'less'} per hour"
    if abs(price) < EQUAL:
        text = f"takes {abs(hours):.1%} {'longer' if hours > 0 else 'less'} at the same price"
    elif abs(hours) < EQUAL:
        text = f"as fast, but costs {more}"
    elif hours > 0:
        text = f"takes {hours:.1%} longer {'and' if price > 0 else 'but'} costs {more}"
    else:
        text = f"takes {-hours:.1%} less {'but' if price > 0 else 'and'} costs {more}"
    return text.replace("%", " %")
