"""Ranks for a placement: the integers of least money, and the paper's two static rules."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from heterps_hpc.plan.cost_model import Choice, StageTable, stages_of
from heterps_hpc.plan.exact.solver import Solution, solve

# The static rules of the paper's comparison, set once for all jobs, as operators do:
CPU_RANKS_PER_GPU_RANK = 8  # StaRatio, about the cores that a node has for each of its GPUs
PARAMETER_SERVERS_PER_WORKER = 4  # StaPSRatio: ranks with tables per rank without


def provision(
    table: StageTable,
    placement: Sequence[int],
    seconds: float = 5.0,
    start: tuple[Choice, ...] | None = None,
    max_intervals: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> Solution:
    """The integer ranks of least money; exact unless time (or effort) runs out."""
    return solve(
        table,
        runs=stages_of(placement),
        seconds=seconds,
        start=start,
        max_intervals=max_intervals,
        clock=clock,
    )


def static_ratio(table: StageTable, placement: Sequence[int]) -> tuple[Choice, ...] | None:
    """StaRatio: a fixed number of CPU ranks per GPU rank, as few of both as meet the floor."""
    runs = stages_of(placement)
    is_cpu = ~table.problem.pools.is_accelerator
    mixed = not all(is_cpu[pool] for _, _, pool in runs)
    ratio = [CPU_RANKS_PER_GPU_RANK if mixed and is_cpu[pool] else 1 for _, _, pool in runs]
    return _first_valid(table, runs, ratio)


def static_server_ratio(table: StageTable, placement: Sequence[int]) -> tuple[Choice, ...] | None:
    """StaPSRatio: stages with tables get a fixed multiple of the ranks of the others."""
    runs = stages_of(placement)
    embeds = table.problem.layers.is_embedding
    ratio = [
        PARAMETER_SERVERS_PER_WORKER if embeds[first : last + 1].any() else 1
        for first, last, _ in runs
    ]
    return _first_valid(table, runs, ratio)


def _first_valid(
    table: StageTable, runs: list[tuple[int, int, int]], ratio: list[int]
) -> tuple[Choice, ...] | None:
    """The smallest n with n·ratio ranks per stage that is valid; a full pool caps its stages."""
    problem = table.problem
    for n in range(1, int(problem.pools.limit.max()) + 1):
        ranks = [
            int(min(n * r, problem.pools.limit[run[2]])) for r, run in zip(ratio, runs, strict=True)
        ]
        choices = tuple(Choice(*run, k) for run, k in zip(runs, ranks, strict=True))
        if table.evaluate(choices).valid:
            return choices
    return None


STATIC_RULES = {"StaRatio": static_ratio, "StaPSRatio": static_server_ratio}
