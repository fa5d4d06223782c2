"""No plan: what binds, and the smallest single changes of the user's own keys that help."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from heterps_hpc import format as fmt
from heterps_hpc.errors import UserError
from heterps_hpc.plan.exact.solver import find_any, solve
from heterps_hpc.plan.explain import best_throughput
from heterps_hpc.plan.goals import BELOW, Change, Limits, number, rounded
from heterps_hpc.plan.problem import Problem
from heterps_hpc.plan.question import WITHIN, Question

log = logging.getLogger(__name__)

SECONDS = 20.0  # for the remedies of all pools together
SECONDS_PER_QUESTION = 1.0
SECONDS_FOR_GOAL = 3.0
SPEAK_SECONDS = 2.0
MAX_FACTOR = 1024.0  # no larger change of a pool is looked for
MAX_RANKS = 100_000
CLOSE = 1.005  # how close to the least memory that helps
SNAPSHOTS = "saves alongside training (`every_steps`, `every_minutes`), copies of the tables"


@dataclass(frozen=True)
class Remedy:
    """What makes the question answerable: one change, or several of keys that bind together."""

    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.changes))


@dataclass(frozen=True)
class Remedies:
    """The smallest single changes that help: of the goal, and of all else."""

    of_goal: tuple[Remedy, ...]
    others: tuple[Remedy, ...]
    looked_at_all: bool  # whether there was time for every pool

    def __iter__(self) -> Iterator[Remedy]:
        return iter((*self.of_goal, *self.others))


def refuse(question: Question) -> UserError:
    """The error for a question without an answer: what binds, and the smallest changes."""
    log.info("no plan; looking for the smallest change that would help")
    remedies = find_remedies(question)
    rest = f"; not every pool was looked at within {SECONDS:.0f} s"
    rest = "" if remedies.looked_at_all else rest
    if not list(remedies):
        no_help = "no single change of goal, ranks or memory was found to help"
        return UserError(f"{_reason(question)}, and {no_help}{rest}")
    reason = "the model does not fit into the memory of any plan"
    if remedies.of_goal:
        reason = _reason(question)
    return UserError(f"{reason}; any one of these helps: {'; '.join(map(str, remedies))}{rest}")


def find_remedies(question: Question, seconds: float = SECONDS) -> Remedies:
    """The smallest single changes that help."""
    of_goal = tuple(_of_goal(question))
    deadline = time.monotonic() + seconds
    others: list[Remedy] = []
    problem, ask = question.problem, _Ask(question, deadline)
    if problem.snapshot_share and ask.answerable(problem.without_snapshots()):
        others.append(Remedy((Change(SNAPSHOTS, 1, 0),)))
    spoke = time.monotonic()
    for index in range(problem.num_pools):
        if time.monotonic() > deadline:
            return Remedies(of_goal, tuple(others), False)
        if time.monotonic() > spoke + SPEAK_SECONDS:
            log.info("  pool %d of %d", index + 1, problem.num_pools)
            spoke = time.monotonic()
        others += _of_pool(ask, index)
    return Remedies(of_goal, tuple(others), time.monotonic() <= deadline)


def _reason(question: Question) -> str:
    """Which limit no plan keeps to."""
    limits = question.limits
    money = "" if math.isinf(limits.max_money) else fmt.money(limits.max_money)
    binding = max(limits.speed, key=lambda limit: limit.floor, default=None)
    if binding is None:
        return f"no plan costs as little as max_money {money}" if money else "no plan fits"
    what = f"no plan reaches {number(limits.floor)} samples/s"
    if binding.key != "min_samples_per_second":
        what = f"no plan reaches the {number(limits.floor)} samples/s that {binding} needs"
    return f"{what} within " + (f"a max_money of {money}" if money else "the pools' limits")


def _of_goal(question: Question) -> Iterator[Remedy]:
    """The least changes of the goal itself, one limit at a time."""
    limits = question.limits
    reached = _reachable(question)
    if reached is not None:
        changes = limits.loosened(reached * BELOW)
        if changes:
            yield Remedy(changes)
    if math.isfinite(limits.max_money):
        cheapest = solve(question.table, seconds=SECONDS_FOR_GOAL)
        if cheapest.choices is not None:
            needed = rounded(cheapest.value, math.ceil)
            yield Remedy((Change("max_money", limits.max_money, needed),))


def _reachable(question: Question) -> float | None:
    """Samples per second of the fastest plan, within the budget if there is one."""
    best = best_throughput(question.problem, SECONDS_FOR_GOAL)
    if best is None or math.isinf(question.limits.max_money):
        return None if best is None else best.samples_per_second
    budget = replace(question, limits=Limits((), question.limits.max_money), best=best)
    fastest = budget.certify(SECONDS_FOR_GOAL)
    return None if fastest.choices is None else question.problem.batch_size / fastest.value


@dataclass(frozen=True)
class _Ask:
    """Whether changed pools would do, until time is up: then nothing is."""

    question: Question
    deadline: float

    def answerable(self, changed: Problem) -> bool:
        """Whether the same goal has a plan on changed pools."""
        seconds = min(SECONDS_PER_QUESTION, self.deadline - time.monotonic())
        if seconds <= 0:
            return False
        table, budget = (
            replace(self.question, problem=changed).table,
            self.question.limits.max_money,
        )
        if math.isinf(budget):
            return find_any(table, seconds=seconds) is not None
        return solve(table, seconds=seconds).value <= budget * WITHIN


def _of_pool(ask: _Ask, pool: int) -> Iterator[Remedy]:
    problem = ask.question.problem
    pools, name = problem.pools, problem.pools.names[pool]
    limit = _least_limit(ask, pool)
    if limit is not None:
        yield Remedy(tuple(_limit_changes(problem, pool, limit)))
    memory = _least_factor(ask, lambda factor: _more_memory(problem, pool, factor))
    if memory is not None:
        per_node = 1 if pools.ranks_per_node is None else int(pools.ranks_per_node[pool])
        now = float(pools.memory[pool]) * per_node / 1e9
        needed = rounded(now * memory, math.ceil)
        yield Remedy((Change(f"memory_per_node_gb of pool {name!r}", now, needed),))
    now = float(pools.device_memory[pool]) / 1e9
    if math.isfinite(now):
        device = _least_factor(ask, lambda factor: _more_device_memory(problem, pool, factor))
        if device is not None:
            needed = rounded(now * device, math.ceil)
            yield Remedy((Change(f"gpu_memory_gb of pool {name!r}", now, needed),))


def _limit_changes(problem: Problem, pool: int, ranks: int) -> Iterator[Change]:
    """What the cluster file must say for a pool to have so many ranks."""
    pools, name = problem.pools, problem.pools.names[pool]
    if pools.ranks_per_node is None or not pools.max_nodes:
        yield Change(f"max_ranks of pool {name!r}", int(pools.limit[pool]), ranks)
        return
    max_nodes, max_ranks = pools.max_nodes[pool], pools.max_ranks[pool]
    nodes = -(-ranks // int(pools.ranks_per_node[pool]))
    if max_nodes is not None and nodes > max_nodes:
        yield Change(f"max_nodes of pool {name!r}", max_nodes, nodes)
    if max_ranks is not None and ranks > max_ranks:
        yield Change(f"max_ranks of pool {name!r}", max_ranks, ranks)


def _more_memory(problem: Problem, pool: int, factor: float) -> Problem:
    memory = problem.pools.memory.copy()
    memory[pool] *= factor
    return problem.with_memory(memory)


def _more_device_memory(problem: Problem, pool: int, factor: float) -> Problem:
    memory = problem.pools.device_memory.copy()
    memory[pool] *= factor
    return problem.with_device_memory(memory)


def _least_limit(ask: _Ask, pool: int) -> int | None:
    """Ranks of one pool that would be enough, all else as it is."""
    problem = ask.question.problem

    def enough(limit: int) -> bool:
        limits = problem.pools.limit.copy()
        limits[pool] = limit
        return ask.answerable(problem.with_limits(limits))

    low = int(problem.pools.limit[pool])
    high = int(min(low * MAX_FACTOR, MAX_RANKS))
    if high <= low or not enough(high):  # one question instead of ten where nothing helps
        return None
    while high - low > 1:
        middle = max(low + 1, int(math.sqrt(low * high)))
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _least_factor(ask: _Ask, changed: Callable[[float], Problem]) -> float | None:
    """The least factor of some memory that would be enough, closely."""
    low, high = 1.0, MAX_FACTOR
    if not ask.answerable(changed(high)):
        return None
    while high / low > CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if ask.answerable(changed(middle)) else (middle, high)
    return high
