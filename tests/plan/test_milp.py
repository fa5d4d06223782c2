"""HiGHS where limits couple stages: the same optimum as plain enumeration, and proofs in time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact import focus, solver
from heterps_hpc.plan.exact.bounds import affordable
from heterps_hpc.plan.exact.milp import MilpAnswer
from heterps_hpc.plan.exact.solver import solve
from heterps_hpc.plan.problem import Problem
from tests.plan.enumeration import all_plans
from tests.plan.instances import random_problem

SHAPES = [(4, 2, 3), (5, 2, 2), (4, 3, 2), (3, 2, 5)]
LOOSE = 100


@pytest.fixture
def only_highs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Labels give up at once, so that every interval is a mixed-integer programme; counts them."""
    monkeypatch.setattr(solver, "FEW_PRODUCTS", 1)
    monkeypatch.setattr(solver, "WIDE", np.inf)
    sizes: list[int] = []
    real = focus.best_of_interval

    def counted(*args: object, **kwargs: object) -> MilpAnswer:
        sizes.append(1)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(focus, "best_of_interval", counted)
    return sizes


def _limits_bind(problem: Problem) -> bool:
    """Whether the fastest plan would break a limit that its stages share, if it were let."""
    roomy = problem.with_limits(np.full_like(problem.pools.limit, LOOSE))
    best = solve(StageTable(roomy), objective="seconds", seconds=20).choices
    return best is not None and bool(StageTable(problem).evaluate(best).over_limit)


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.full) for block in range(1, 4))]
)
def test_agrees_with_enumeration(only_highs: list[int], block: int) -> None:
    """Least seconds and least money at tight and loose floors, money by node included."""
    for seed in range(block * 40, block * 40 + 40):
        num_layers, num_pools, max_ranks = SHAPES[seed % len(SHAPES)]
        problem = random_problem(
            seed + 5000, num_layers=num_layers, num_pools=num_pools, max_ranks=max_ranks
        )
        plans = list(all_plans(problem))
        fastest = solve(StageTable(problem), objective="seconds")
        assert fastest.proven
        assert (fastest.choices is None) == (not plans), seed
        if not plans:
            continue
        least = min(seconds for _, seconds, _ in plans)
        assert fastest.value == pytest.approx(least, rel=2e-6), seed
        for slack in (1.01, 3.0):
            best = solve(StageTable(problem.with_floor(problem.batch_size / (least * slack))))
            money = min(s * price for _, s, price in plans if s <= least * slack * (1 + 1e-12))
            assert best.proven
            expected = money * problem.num_batches / 3600
            assert best.value == pytest.approx(expected, rel=2e-6), (seed, slack)
    assert only_highs


def test_limits_that_bind_are_certified_against_enumeration() -> None:
    """The ordinary way, on questions whose fastest plan breaks a shared limit if it is let."""
    compared = 0
    for seed in range(300):
        problem = random_problem(seed, num_layers=5, num_pools=2, max_ranks=4)
        if problem.pools.limit.max() < 2 or not _limits_bind(problem):
            continue
        plans = list(all_plans(problem))
        if not plans:
            continue
        least = min(seconds for _, seconds, _ in plans)
        found = solve(StageTable(problem), objective="seconds")
        assert found.proven
        assert found.value == pytest.approx(least, rel=2e-6), seed
        floor = problem.batch_size / (least * 1.2)
        money = min(s * price for _, s, price in plans if s <= least * 1.2 * (1 + 1e-12))
        best = solve(StageTable(problem.with_floor(floor)))
        assert best.proven
        assert best.value == pytest.approx(money * problem.num_batches / 3600, rel=2e-6), seed
        compared += 1
        if compared == 40:
            return
    pytest.fail(f"only {compared} questions had limits that bind")


@pytest.mark.parametrize("seed", [0, 1])
def test_many_stages_on_shared_pools_are_certified(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen layers on four small pools, a floor near the best: labels alone ran out of time."""
    calls: list[bool] = []
    real = focus.best_of_interval
    monkeypatch.setattr(
        focus,
        "best_of_interval",
        lambda *args, **kwargs: (calls.append(True), real(*args, **kwargs))[1],
    )
    problem = random_problem(seed, num_layers=16, num_pools=4, max_ranks=16)
    fastest = solve(StageTable(problem), objective="seconds", seconds=60)
    assert fastest.proven
    tight = problem.with_floor(0.9 * problem.batch_size / fastest.value)
    best = solve(StageTable(tight), seconds=60)
    assert best.proven
    assert best.choices is not None
    assert not StageTable(problem).evaluate(best.choices).over_limit
    assert calls


@pytest.mark.parametrize("seed", [2, 4])
def test_whole_nodes_at_a_floor_that_binds_are_certified(seed: int) -> None:
    """Nodes billed whole: what an interval cannot pay is no part of its bounds."""
    problem = random_problem(seed, num_layers=14, num_pools=4, max_ranks=20)
    nodes = dataclasses.replace(problem.pools, ranks_per_unit=np.full(4, 4))
    problem = dataclasses.replace(problem, pools=nodes)
    table = StageTable(problem)
    free = solve(table, seconds=60)
    assert free.choices is not None
    longest = 0.9 * table.evaluate(free.choices).seconds
    best = solve(StageTable(problem.with_floor(problem.batch_size / longest)), seconds=60)
    assert free.proven
    assert best.proven
    assert best.choices is not None
    assert best.value > 1.05 * free.value
    assert table.evaluate(best.choices).seconds <= longest * (1 + 1e-12)


def test_what_money_per_hour_can_pay_counts_whole_nodes() -> None:
    problem = random_problem(2, num_layers=2, num_pools=3, max_ranks=20)
    pools = dataclasses.replace(
        problem.pools,
        price=np.array([10.0, 3.0, 1.0]),
        ranks_per_unit=np.array([4, 2, 1]),
        limit=np.array([100, 5, 100]),
    )
    asked = dataclasses.replace(problem, pools=pools)
    assert affordable(asked, 9.99).tolist() == [0, 5, 9]
    assert affordable(asked, 20.0).tolist() == [8, 5, 20]
