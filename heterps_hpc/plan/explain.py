"""Why there is no plan, what would help, and what other throughputs would cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps_hpc.errors import UserError
from heterps_hpc.layout import Plan
from heterps_hpc.plan.cost_model import Choice, StageTable, to_plan
from heterps_hpc.plan.exact.solver import solve
from heterps_hpc.plan.problem import Problem

SECONDS_PER_QUESTION = 3.0
MOST_FACTOR = 1024
SNAPSHOTS = "copies of the tables for saves beside training (drop `every_steps`, `every_minutes`)"


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
        if high > now * MOST_FACTOR or high > 100_000:
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
        if high > MOST_FACTOR:
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


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
