"""The exact solver against plain enumeration."""

from __future__ import annotations

import pytest

from heterps_hpc.plan.cost_model import StageTable, estimate
from heterps_hpc.plan.exact.solver import solve
from tests.plan.enumeration import all_plans
from tests.plan.instances import random_problem

SHAPES = [(1, 1, 3), (1, 3, 4), (2, 2, 4), (3, 2, 4), (3, 3, 2), (4, 2, 3), (5, 2, 2), (3, 1, 5)]


@pytest.mark.parametrize("block", range(20))
def test_agrees_with_enumeration(block: int) -> None:
    """1,000 questions: least seconds and least money, at several floors."""
    for seed in range(block * 50, block * 50 + 50):
        num_layers, num_pools, most_ranks = SHAPES[seed % len(SHAPES)]
        problem = random_problem(
            seed, num_layers=num_layers, num_pools=num_pools, most_ranks=most_ranks
        )
        plans = list(all_plans(problem))
        fastest = solve(StageTable(problem), objective="seconds")
        assert fastest.proven
        if not plans:
            assert fastest.choices is None, seed
            assert solve(StageTable(problem)).choices is None, seed
            continue
        least = min(seconds for _, seconds, _ in plans)
        assert fastest.value == pytest.approx(least, rel=1e-8), seed
        for slack in ((1.0001, 4.0), (1.5, 1e9))[seed % 2]:
            asked = problem.with_floor(problem.batch_size / (least * slack))
            table = StageTable(asked)
            best = solve(table)
            scale = problem.num_batches / 3600
            money = min(
                s * price * scale for _, s, price in plans if s <= least * slack * (1 + 1e-12)
            )
            assert best.proven
            assert best.value == pytest.approx(money, rel=1e-8), (seed, slack)
            assert best.choices is not None
            assert estimate(table, best.choices).money == pytest.approx(money, rel=1e-8)
