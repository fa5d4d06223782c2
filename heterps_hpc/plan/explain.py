"""Why this plan and no other: runner-up plans and why they lose, what other throughputs cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterps_hpc import format as fmt
from heterps_hpc.layout import Estimate, Plan
from heterps_hpc.plan.cost_model import (
    Choice,
    StageTable,
    estimate,
    placement_of,
    stages_of,
    to_plan,
)
from heterps_hpc.plan.exact.solver import Solution, solve
from heterps_hpc.plan.problem import Problem
from heterps_hpc.planning_result import RunnerUp

SECONDS_PER_QUESTION = 3.0
RUNNER_UP_SECONDS = 4.0  # for all runner-up plans of one question together
EQUAL = 5e-4
CLOSE = 1.05  # times faster: nearer points of a frontier are as good as one
BELOW = (0.5, 0.65, 0.8, 0.9, 0.95)  # shares of a floor whose price a reader may want to know


@dataclass(frozen=True)
class Best:
    """The fastest plan that was found, and what no plan can exceed, in samples per second."""

    samples_per_second: float
    at_most: float
    choices: tuple[Choice, ...]

    @property
    def proven(self) -> bool:
        """Whether the two are the same."""
        return self.at_most <= self.samples_per_second * (1 + 1e-9)


def best_throughput(problem: Problem, seconds: float = SECONDS_PER_QUESTION) -> Best | None:
    """The fastest plan, whatever it costs; None if nothing fits."""
    table = StageTable(problem.with_floor(0.0))
    solution = solve(table, objective="seconds", seconds=seconds)
    if solution.choices is None:
        return None
    at_most = problem.batch_size / solution.bound if solution.bound > 0 else float("inf")
    return Best(problem.batch_size / solution.value, at_most, solution.choices)


def frontier(
    problem: Problem, around: float = 0.0, num_points: int = 8, seconds: float = 5.0
) -> list[Plan]:
    """The least money at rising throughput floors, from the cheapest plan to the fastest; closer
    below one that is asked about, where a reader may give way."""
    best = best_throughput(problem, seconds / 4)
    cheapest = solve(StageTable(problem.with_floor(0.0)), seconds=seconds / 4)
    if best is None or cheapest.choices is None:
        return []
    table = StageTable(problem.with_floor(0.0))
    first = to_plan(table, cheapest.choices, "exact")
    plans = [first]
    slowest, fastest = first.estimate.samples_per_second, best.samples_per_second
    # no more of them than differ
    num_points = min(num_points, 2 + int(np.log(fastest / slowest) / np.log(CLOSE)))
    floors = [*np.geomspace(slowest, fastest, num_points)[1:], *(around * share for share in BELOW)]
    floors = sorted(floor for floor in floors if floor > slowest)
    for floor in floors:
        if floor <= plans[-1].estimate.samples_per_second * (1 - 1e-9):
            continue  # the plan before is the cheapest here, too
        asked = StageTable(problem.with_floor(float(floor) * (1 - 1e-9)))
        solution = solve(asked, seconds=seconds / len(floors), start=best.choices)
        if solution.choices is None:
            continue
        plan = to_plan(asked, solution.choices, "exact")
        plan = plan.model_copy(update={"gap_is_bound": not solution.proven})
        if plan.stages != plans[-1].stages:
            plans.append(plan)
    return plans


def next_floor(plan: Plan, points: list[Plan]) -> Plan | None:
    """The cheapest plan of the frontier that is at least a tenth faster."""
    wanted = plan.estimate.samples_per_second * 1.1
    faster = [point for point in points if point.estimate.samples_per_second >= wanted]
    return min(faster, key=lambda point: point.estimate.money, default=None)


def runners_up(
    table: StageTable, chosen: Sequence[Choice], seconds: float = RUNNER_UP_SECONDS
) -> tuple[list[RunnerUp], list[str], list[str]]:
    """The next best placement, and the best plan without each pool that the chosen one uses.

    Also the pools without which there is no plan, and those without which none was found in time.
    """
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
    needed, undecided = (
        [
            names[pool]
            for pool in pools
            if (only := found.get(f"best without {names[pool]}"))
            and only.choices is None
            and only.proven is proven
        ]
        for proven in (True, False)
    )
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
    by_money = sorted(runners.values(), key=lambda runner: runner.plan.estimate.money)
    return by_money, needed, undecided


def next_placement(table: StageTable, chosen: Sequence[Choice], deadline: float) -> Solution:
    """The best plan of all that put at least one layer elsewhere; exact unless time runs out.

    Such a plan moves some layer off its pool, so the best of "layer i elsewhere" over all i is it.
    Each question starts from the best answer so far, and has only to beat that.
    """
    placement = placement_of(chosen)
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
    """The layers, those at the ends of stages first: a near contender soon makes the rest quick."""
    ends = [layer for first, last, _ in stages_of(placement) for layer in (first, last)]
    return list(dict.fromkeys([*ends, *range(len(placement))]))


def why(other: Estimate, chosen: Estimate) -> str:
    """What makes a plan more expensive: money is hours times $/hour."""
    hours = other.hours / chosen.hours - 1
    price = other.money_per_hour / chosen.money_per_hour - 1
    if abs(other.money / chosen.money - 1) < EQUAL / 10:
        return "costs the same"
    if other.money < chosen.money:
        return "it does not: the scheduler missed it"
    more = f"{fmt.percent(abs(price))} {'more' if price > 0 else 'less'} per hour"
    if price >= 1:
        more = f"{fmt.factor(1 + price)} times as much per hour"
    slower = f"takes {fmt.percent(abs(hours))} {'longer' if hours > 0 else 'less'}"
    if hours >= 1:
        slower = f"takes {fmt.factor(1 + hours)} times as long"
    if abs(price) < EQUAL:
        return f"{slower} at the same price"
    if abs(hours) < EQUAL:
        return f"as fast, but costs {more}"
    return f"{slower} {'and' if (hours > 0) == (price > 0) else 'but'} costs {more}"
