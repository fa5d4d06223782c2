"""No plan: what binds, and the smallest single changes of the user's own keys that help."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from heterps_hpc.errors import UserError
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact.solver import find_any
from heterps_hpc.plan.explain import best_throughput
from heterps_hpc.plan.problem import Problem

log = logging.getLogger(__name__)

SECONDS = 20.0  # for all remedies together
SECONDS_PER_QUESTION = 1.0
MAX_FACTOR = 1024.0  # no larger change of a pool is looked for
MAX_RANKS = 100_000
CLOSE = 1.005  # how close to the least memory that helps
DIGITS = 4
SNAPSHOTS = "saves alongside training (`every_steps`, `every_minutes`), copies of the tables"


@dataclass(frozen=True)
class Change:
    """A key of the job or cluster file, its value now, and the least (or largest) that helps."""

    what: str
    now: float
    needed: float

    def __str__(self) -> str:
        return f"{self.what}: {number(self.now)} → {number(self.needed)}"


@dataclass(frozen=True)
class Remedy:
    """What makes the question answerable: one change, or two of keys that bind together."""

    changes: tuple[Change, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.changes))


def refuse(problem: Problem) -> UserError:
    """The error for a question without an answer: what binds, and the smallest changes."""
    remedies, looked_at_all = find_remedies(problem)
    floor = f"{number(problem.floor)} samples/s" if problem.floor > 0 else "any throughput"
    reason = f"no plan reaches {floor} within the pools' limits"
    rest = "" if looked_at_all else f"; not every pool was looked at within {SECONDS:.0f} s"
    if not remedies:
        no_help = "no single change of floor, ranks or memory was found to help"
        return UserError(f"{reason}, and {no_help}{rest}")
    if not any(change.what.startswith("floor") for r in remedies for change in r.changes):
        reason = "the model does not fit into the memory of any plan"
    return UserError(f"{reason}; any one of these helps: {'; '.join(map(str, remedies))}{rest}")


def find_remedies(problem: Problem, seconds: float = SECONDS) -> tuple[list[Remedy], bool]:
    """The smallest single changes that help, and whether every pool was looked at in time."""
    deadline = time.monotonic() + seconds
    log.info("no plan; looking for the smallest change that would help")
    remedies: list[Remedy] = []
    best = best_throughput(problem)
    if best is not None and problem.floor > 0:
        below = rounded(best.samples_per_second * (1 - 1e-9), math.floor)
        remedies.append(Remedy((Change("floor, samples/s", problem.floor, below),)))
    if problem.snapshot_share and _answerable(problem.without_snapshots()):
        remedies.append(Remedy((Change(SNAPSHOTS, 1, 0),)))
    spoke = time.monotonic()
    for index in range(problem.num_pools):
        if time.monotonic() > deadline:
            return remedies, False
        if time.monotonic() > spoke + 2.0:
            log.info("  pool %d of %d", index + 1, problem.num_pools)
            spoke = time.monotonic()
        remedies += _of_pool(problem, index)
    return remedies, True


def _of_pool(problem: Problem, pool: int) -> Iterator[Remedy]:
    pools, name = problem.pools, problem.pools.names[pool]
    limit = _least_limit(problem, pool)
    if limit is not None:
        yield Remedy(tuple(_limit_changes(problem, pool, limit)))
    memory = _least_factor(lambda factor: _more_memory(problem, pool, factor))
    if memory is not None:
        per_node = 1 if pools.ranks_per_node is None else int(pools.ranks_per_node[pool])
        now = float(pools.memory[pool]) * per_node / 1e9
        needed = rounded(now * memory, math.ceil)
        yield Remedy((Change(f"memory_per_node_gb of pool {name!r}", now, needed),))
    now = float(pools.device_memory[pool]) / 1e9
    if math.isfinite(now):
        device = _least_factor(lambda factor: _more_device_memory(problem, pool, factor))
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


def _answerable(problem: Problem) -> bool:
    return find_any(StageTable(problem), seconds=SECONDS_PER_QUESTION) is not None


def _more_memory(problem: Problem, pool: int, factor: float) -> Problem:
    memory = problem.pools.memory.copy()
    memory[pool] *= factor
    return problem.with_memory(memory)


def _more_device_memory(problem: Problem, pool: int, factor: float) -> Problem:
    memory = problem.pools.device_memory.copy()
    memory[pool] *= factor
    return problem.with_device_memory(memory)


def _least_limit(problem: Problem, pool: int) -> int | None:
    """Ranks of one pool that would be enough, all else as it is."""

    def enough(limit: int) -> bool:
        limits = problem.pools.limit.copy()
        limits[pool] = limit
        return _answerable(problem.with_limits(limits))

    low = int(problem.pools.limit[pool])
    high = int(min(low * MAX_FACTOR, MAX_RANKS))
    if high <= low or not enough(high):  # one question instead of ten where nothing helps
        return None
    while high - low > 1:
        middle = max(low + 1, int(math.sqrt(low * high)))
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _least_factor(changed: Callable[[float], Problem]) -> float | None:
    """The least factor of some memory that would be enough, closely."""
    low, high = 1.0, MAX_FACTOR
    if not _answerable(changed(high)):
        return None
    while high / low > CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _answerable(changed(middle)) else (middle, high)
    return high


def rounded(value: float, towards: Callable[[float], int]) -> float:
    """A number of few digits on the side that still helps; whole from 1,000 up."""
    if value <= 0:
        return value
    scale = 10.0 ** min(0, math.floor(math.log10(value)) - DIGITS + 1)
    return float(f"{towards(value / scale) * scale:.12g}")


def number(value: float) -> str:
    """A number in full as far as it is known, so that what is printed can be used."""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.{DIGITS}g}"
