"""Why this plan and no other: runner-up plans and why they lose, what other throughputs would cost,
and, where there is no plan, the smallest changes that help."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterps_hpc.errors import UserError
from heterps_hpc.layout import Estimate, Plan
from heterps_hpc.plan.cost_model import Choice, StageTable, estimate, stages_of, to_plan
from heterps_hpc.plan.exact.solver import Solution, solve
from heterps_hpc.plan.problem import Problem
from heterps_hpc.planning_result import RunnerUp

SECONDS_PER_QUESTION = 3.0
RUNNER_UP_SECONDS = 4.0  # for all runner-up plans of one question together
EQUAL = 5e-4
MAX_FACTOR = 1024
SNAPSHOTS = (
    "copies of the tables for saves alongside training (drop `every_steps`, `every_minutes`)"
)


@dataclass(frozen=True)
class Remedy:
    """One change that makes the question answerable."""

    what: str
    now: float
    needed: float

    def __str__(self) -> str:
        return f"{self.what}: {_number(self.now)} → {_number(self.needed)}"


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


def refuse(problem: Problem) -> UserError:
    """The error for a question without an answer: what binds, and the smallest changes."""
    remedies = find_remedies(problem)
    floor = f"{_number(problem.floor)} samples/s" if problem.floor > 0 else "any throughput"
    reason = f"no plan reaches {floor} within the pools' limits"
    if not remedies:
        return UserError(f"{reason}, and no single change of floor, ranks or memory would help")
    if not any(remedy.what.startswith("floor") for remedy in remedies):
        reason = "the model does not fit into the memory of any plan"
    return UserError(f"{reason}; any one of these helps: {'; '.join(map(str, remedies))}")


def find_remedies(problem: Problem) -> list[Remedy]:
    """The smallest single changes (floor, limit of a pool, memory of a pool) that help."""
    remedies = []
    best = best_throughput(problem)
    if best is not None and problem.floor > 0:
        rate = best.samples_per_second
        below = float(np.floor(rate)) if rate >= 10 else rate
        remedies.append(Remedy("floor, samples/s", problem.floor, below))
    for index, name in enumerate(problem.pools.names):
        limit = _least_limit(problem, index)
        if limit is not None:
            now = float(problem.pools.limit[index])
            remedies.append(Remedy(f"max_ranks of pool {name!r}", now, float(limit)))
        if best is None:
            memory = _least_memory(problem, index)
            if memory is not None:
                now = float(problem.pools.memory[index]) / 1e9
                remedies.append(Remedy(f"memory per rank of pool {name!r}, GB", now, memory))
    if best is None and problem.snapshot_share and _answerable(problem.without_snapshots()):
        remedies.append(Remedy(SNAPSHOTS, problem.snapshot_share, 0.0))
    return remedies


def best_throughput(problem: Problem, seconds: float = SECONDS_PER_QUESTION) -> Best | None:
    """The fastest plan, whatever it costs; None if nothing fits."""
    table = StageTable(problem.with_floor(0.0))
    solution = solve(table, objective="seconds", seconds=seconds)
    if solution.choices is None:
        return None
    at_most = problem.batch_size / solution.bound if solution.bound > 0 else float("inf")
    return Best(problem.batch_size / solution.value, at_most, solution.choices)


def _answerable(problem: Problem) -> bool:
    return solve(StageTable(problem), objective="seconds", seconds=1.0).choices is not None


def _least_limit(problem: Problem, pool: int) -> int | None:
    """Ranks of one pool that would be enough, all else as it is."""

    def enough(limit: int) -> bool:
        limits = problem.pools.limit.copy()
        limits[pool] = limit
        return _answerable(problem.with_limits(limits))

    now = int(problem.pools.limit[pool])
    high = now
    while not enough(high):
        high *= 2
        if high > now * MAX_FACTOR or high > 100_000:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high if high > now else None


def _least_memory(problem: Problem, pool: int) -> float | None:
    """GB per rank of one pool that would be enough, to 1 %."""

    def enough(factor: float) -> bool:
        memory = problem.pools.memory.copy()
        memory[pool] *= factor
        return _answerable(problem.with_memory(memory))

    high = 1.0
    while not enough(high):
        high *= 2
        if high > MAX_FACTOR:
            return None
    low = high / 2
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if enough(middle) else (middle, high)
    return float(problem.pools.memory[pool]) * high / 1e9


def frontier(problem: Problem, num_points: int = 8, seconds: float = 4.0) -> list[Plan]:
    """The least money at rising throughput floors, from the cheapest plan to the fastest."""
    best = best_throughput(problem, seconds / 4)
    cheapest = solve(StageTable(problem.with_floor(0.0)), seconds=seconds / 4)
    if best is None or cheapest.choices is None:
        return []
    table = StageTable(problem.with_floor(0.0))
    first = to_plan(table, cheapest.choices, "exact")
    plans = [first]
    slowest, fastest = first.estimate.samples_per_second, best.samples_per_second
    for floor in np.geomspace(slowest, fastest, num_points)[1:]:
        asked = StageTable(problem.with_floor(float(floor) * (1 - 1e-9)))
        solution = solve(asked, seconds=seconds / num_points, start=best.choices)
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
    """The layers, those at the ends of stages first: a near contender soon makes the rest quick."""
    ends = [layer for first, last, _ in stages_of(placement) for layer in (first, last)]
    return list(dict.fromkeys([*ends, *range(len(placement))]))


def why(other: Estimate, chosen: Estimate) -> str:
    """What makes a plan more expensive: money is hours times $/hour."""
    hours = other.hours / chosen.hours - 1
    price = other.money_per_hour / chosen.money_per_hour - 1
    if abs(other.money / chosen.money - 1) < EQUAL / 10:
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


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
