"""The exact solver against plain enumeration: a short form, and a long one (`-m full`)."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest

from heterps_hpc.plan.cost_model import StageTable, estimate
from heterps_hpc.plan.exact.deadline import Deadline
from heterps_hpc.plan.exact.labels import _undominated, _with_waits
from heterps_hpc.plan.exact.solver import solve
from tests.plan import test_messages
from tests.plan.enumeration import all_plans, least_of_all
from tests.plan.instances import random_problem

SHAPES = [(1, 1, 3), (1, 3, 4), (2, 2, 4), (3, 2, 4), (3, 3, 2), (4, 2, 3), (5, 2, 2), (3, 1, 5)]


@pytest.mark.parametrize("block", range(10))
def test_agrees_with_enumeration(block: int) -> None:
    """100 questions: least seconds and least money, at several floors."""
    _check_small_questions(range(block * 50, block * 50 + 10))


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", range(30))
def test_agrees_with_enumeration_of_1500_questions(block: int) -> None:
    _check_small_questions(range(block * 50, block * 50 + 50))


@pytest.mark.parametrize("block", range(4))
def test_agrees_with_enumeration_above_256_ranks(block: int) -> None:
    _check_many_ranks(range(block * 5, block * 5 + 5))


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", range(20))
def test_agrees_with_enumeration_of_400_questions_above_256_ranks(block: int) -> None:
    _check_many_ranks(range(block * 20, block * 20 + 20))


def _check_many_ranks(seeds: range) -> None:
    """A pool of up to 700 ranks, by rank or by node, alone or with a second pool."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        num_layers, num_pools = ((1, 1), (2, 2), (1, 2), (3, 2), (2, 1))[seed % 5]
        problem = random_problem(
            seed, num_layers=num_layers, num_pools=num_pools, max_ranks=6 if num_layers > 2 else 40
        )
        limits = problem.pools.limit.copy()
        limits[0] = rng.integers(257, 300 if num_layers > 2 else 700)
        memory = problem.pools.memory.copy()
        memory[0] = problem.layers.table_bytes.sum() / rng.integers(20, limits[0] + 20)
        problem = problem.with_limits(limits).with_memory(memory)
        fastest = solve(StageTable(problem), objective="seconds")
        least, _ = least_of_all(problem)
        assert fastest.proven, seed
        assert (fastest.choices is None) == np.isinf(least), seed
        if fastest.choices is None:
            continue
        assert fastest.value == pytest.approx(least, rel=2e-6), seed
        for slack in (1.001, 1.3, 1e9):
            best = solve(StageTable(problem.with_floor(problem.batch_size / (least * slack))))
            _, product = least_of_all(problem, least * slack)
            money = product * problem.num_batches / 3600
            assert best.proven, (seed, slack)
            assert best.value == pytest.approx(money, rel=2e-6), (seed, slack)


def _check_small_questions(seeds: range) -> None:
    for seed in seeds:
        num_layers, num_pools, max_ranks = SHAPES[seed % len(SHAPES)]
        problem = random_problem(
            seed, num_layers=num_layers, num_pools=num_pools, max_ranks=max_ranks
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


def test_time_is_counted_by_the_clock_of_whoever_asks() -> None:
    """A benchmark counts a core's own seconds, so that a busy machine takes none away."""
    table = StageTable(random_problem(5, num_layers=8, num_pools=3, max_ranks=12))
    assert solve(table, seconds=60).proven
    ticks = itertools.count(0.0)
    cut_off = solve(table, seconds=2.0, clock=lambda: next(ticks))
    assert not cut_off.proven
    assert 1 < next(ticks) < 20


def test_a_solver_that_knows_only_the_wall_gets_as_many_seconds_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a core that others have for three quarters of the time."""
    wall = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: wall[0])
    own = Deadline.after(10.0, lambda: wall[0] / 4)
    assert own.wall_left == own.left == 10.0  # nothing is known yet
    wall[0] += 8.0
    assert own.left == 8.0
    assert own.within(2.0).wall_left == 8.0


def test_ranks_that_only_a_neighbour_gains_by_are_considered() -> None:
    """More ranks of the first stage sum gradients for longer than their own part of its link saves,
    but the second stage waits for that link as long again."""
    question = test_messages.problem()
    question = replace(
        question,
        pools=replace(
            question.pools,
            uplink_seconds_per_byte=question.pools.uplink_seconds_per_byte * [1.0, 0.05],
            reduce_latency=np.array([0.01, 0.0]),
            reduce_seconds_per_byte=np.zeros(2),
        ),
        layers=replace(
            question.layers,
            OCT=np.array([[1e-3, 5.0], [1e-3, 5.0], [5.0, 1e-3]]),  # one cut is worth it
            weight_bytes=np.ones(3),
        ),
    )
    fastest = solve(StageTable(question), objective="seconds")
    assert fastest.proven
    assert fastest.value == pytest.approx(least_of_all(question)[0], rel=2e-6)
    assert fastest.choices is not None
    assert fastest.choices[0].ranks > 1


def test_labels_that_are_dropped_are_worse_whatever_comes_next() -> None:
    """The link of what comes next may be as slow as any label's, slower or faster."""
    rng = np.random.default_rng(0)
    dropped = 0
    for _ in range(200):
        chain, way = rng.uniform(0, 1, 12), rng.uniform(0, 1, 12)
        kept = _undominated(_with_waits(chain[:, None], way))
        dropped += len(chain) - len(kept)
        waits = np.abs(way[:, None] - rng.uniform(0, 1.2, 50))
        whole = chain[:, None] + waits
        assert whole[kept].min(axis=0) == pytest.approx(whole.min(axis=0))
    assert dropped > 0
