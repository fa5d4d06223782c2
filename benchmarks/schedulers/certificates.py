"""Certificates against plain enumeration: every plan of many small questions, one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np

from benchmarks.schedulers.families import Family, draw
from heterps_hpc.plan.cost_model import StageTable, stages_of
from heterps_hpc.plan.exact.solver import solve
from heterps_hpc.plan.problem import Ints, Problem

SMALL = Family("small", "few plans", (2, 4), (2, 3), (1, 3), node=(1, 3), link=(1e7, 1e9))
MANY_RANKS = Family("many-ranks", "counts above 256", (1, 2), (2, 2), (130, 420), node=(1, 1))
MANY_RANKS_EVERY = 25  # one question in so many has stages of more than 256 ranks
SAME = 1e-6


def wrong_certificates(num: int, seed: int = 0) -> tuple[int, int, int]:
    """(checked, proven, wrong) of `num` questions with random floors, some without a plan."""
    proven = wrong = 0
    for number in range(num):
        rng = np.random.default_rng([seed, number])
        family = MANY_RANKS if number % MANY_RANKS_EVERY == 0 else SMALL
        problem = draw(family, rng)
        fastest = least_money(problem, seconds_only=True)
        share = float(rng.choice([0.0, 0.5, 0.9, 1.1]))
        if math.isfinite(fastest):
            problem = problem.with_floor(share * problem.batch_size / fastest)
        solution = solve(StageTable(problem), seconds=60)
        proven += solution.proven
        least = least_money(problem)
        wrong += solution.proven and not (
            solution.value == least or abs(solution.value / least - 1) < SAME
        )
        wrong += math.isfinite(least) and solution.bound > least * (1 + SAME)
    return num, proven, wrong


def least_money(problem: Problem, *, seconds_only: bool = False) -> float:
    """The least money (or seconds per batch) over all plans, by looking at each."""
    table, least = StageTable(problem), math.inf
    pools = range(problem.num_pools)
    for placement in itertools.product(pools, repeat=problem.num_layers):
        runs = stages_of(placement)
        pair = np.array([table.pair_index[first, last] for first, last, _ in runs])
        pool = np.array([run[2] for run in runs])
        for ranks in _blocks(problem.pools.limit[pool]):
            shape = ranks.shape
            costs = table.evaluate_many(
                np.broadcast_to(pair, shape), np.broadcast_to(pool, shape), ranks
            )
            valid = (costs.used <= problem.pools.limit).all(axis=1)
            valid &= table.fits(pair, pool, ranks).all(axis=1)
            valid &= costs.seconds <= problem.longest_batch * (1 + 1e-12)
            money = costs.seconds * costs.per_hour * problem.num_batches / 3600
            values = np.where(valid, costs.seconds if seconds_only else money, np.inf)
            least = min(least, float(values.min()))
    return least


def _blocks(limits: Ints) -> list[Ints]:
    """All rank counts within the limits, [plans, stages], in blocks."""
    grids = np.meshgrid(*(np.arange(1, limit + 1) for limit in limits), indexing="ij")
    every = np.stack([grid.ravel() for grid in grids], axis=1)
    return np.array_split(every, max(1, len(every) // 50_000))
