"""Certificates above 256 ranks in a stage, where rank counts start as blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.plan.cost_model import Choice, StageTable
from heterps_hpc.plan.exact.graph import EVERY_COUNT_UP_TO, make_options
from heterps_hpc.plan.exact.solver import solve
from heterps_hpc.plan.goals import Limits, floor_limit
from heterps_hpc.plan.problem import Problem, make_problem
from heterps_hpc.plan.question import Question
from heterps_hpc.plan.remedies import find_remedies
from heterps_hpc.profile import LayerInfo, Profile, Timing
from tests.plan.instances import random_problem

GB = 1e9


def _pool(name: str, max_ranks: int, memory_gb: float = 1.0, price: float = 1.0) -> Pool:
    return Pool(name=name, price_per_hour=price, max_ranks=max_ranks, memory_per_node_gb=memory_gb)


def _profile(tables_gb: list[float], weights_gb: list[float], pools: list[str]) -> Profile:
    """Layers with tables or weights of so many GB; a second each, hardly less with more ranks."""
    layers = tuple(
        LayerInfo(
            name=f"layer{place}",
            kind="embedding" if tables else "fc",
            is_embedding=tables > 0,
            table_bytes_total=tables * GB,
            weight_bytes_total=weights * GB / 4,  # a plan counts four copies
        )
        for place, (tables, weights) in enumerate(zip(tables_gb, weights_gb, strict=True))
    )
    return Profile(
        model="big",
        model_fingerprint="0" * 16,
        batch_size=100,
        layers=layers,
        timings=tuple(
            Timing(layer=layer.name, pool=pool, compute_seconds=1.0, compute_parallel=0.5)
            for layer in layers
            for pool in pools
        ),
    )


def _two_stages_of_one_pool(max_ranks: int) -> Problem:
    """Two tables of 279 and 403 ranks' memory, and between them weights that fit elsewhere only."""
    cluster = Cluster(pools=(_pool("tables", max_ranks), _pool("dense", 4, memory_gb=5.0)))
    profile = _profile([278.5, 0.0, 402.5], [0.0, 2.0, 0.0], ["tables", "dense"])
    return make_problem(profile, cluster, batch_size=100, num_samples=1e6)


@pytest.mark.parametrize("needed", [279, 280, 281, 283, 990])  # not all can lie on any grid
def test_tables_get_exactly_the_ranks_that_they_need(needed: int) -> None:
    cluster = Cluster(pools=(_pool("cpu", 1000),))
    problem = make_problem(
        _profile([needed - 0.5], [0.0], ["cpu"]), cluster, batch_size=100, num_samples=1e6
    )
    table = StageTable(problem)
    best = solve(table)
    assert best.proven
    assert best.choices is not None
    money = {
        ranks: cost.seconds * cost.per_hour
        for ranks in range(1, 1001)
        if (cost := table.evaluate([Choice(0, 0, 0, ranks)])).valid
    }
    assert min(money, key=lambda ranks: money[ranks]) == needed
    assert best.choices == (Choice(0, 0, 0, needed),)


def test_two_stages_that_need_every_rank_of_a_pool() -> None:
    best = solve(StageTable(_two_stages_of_one_pool(682)))
    assert best.proven
    assert best.choices is not None
    assert [c.ranks for c in best.choices if c.pool == 0] == [279, 403]


def test_one_rank_less_has_no_plan_and_the_remedy_asks_for_one_more() -> None:
    problem = _two_stages_of_one_pool(681)
    none = solve(StageTable(problem))
    assert none.proven
    assert none.choices is None
    found = find_remedies(Question(problem, Limits((floor_limit(problem.floor),))))
    limits = {change.what: change.needed for remedy in found for change in remedy.changes}
    assert limits["max_ranks of pool 'tables'"] == 682


def test_a_block_is_never_slower_than_what_it_holds() -> None:
    problem = random_problem(3, num_layers=4, num_pools=2, max_ranks=3000)
    limits = np.array([3000, 2000])
    table = StageTable(problem.with_limits(limits))
    options = make_options(table)
    blocks = np.flatnonzero(options.is_block)
    assert len(blocks) > 100
    assert (options.ranks[blocks] > EVERY_COUNT_UP_TO).all()
    rng = np.random.default_rng(0)
    for index in rng.choice(blocks, 200):
        ranks = np.arange(options.ranks[index], options.max_ranks[index] + 1)
        seconds = table.parts(int(options.pair[index]), int(options.pool[index]), ranks).whole
        assert options.ET[index] <= seconds.min() * (1 + 1e-12)
        assert options.ET[index] >= seconds.min() * 0.97


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("term", ["message_seconds_per_byte", "uplink_seconds_per_byte"])
def test_what_crosses_a_cut_has_a_bound_for_blocks(term: str, staleness: int) -> None:
    """Messages, cuts and prefetched rows, far above all other terms, over ranges of counts."""
    problem = random_problem(3, num_layers=4, num_pools=2, max_ranks=3000)
    pools = replace(problem.pools, **{term: np.full(2, 1e3)})
    table = StageTable(replace(problem, pools=pools, staleness=staleness))
    for pair in range(len(table.pairs)):
        for low, high in ((1, 1), (1, 2), (1, 9), (2, 5), (3, 400), (300, 310)):
            bound = table.stage_seconds(pair, 0, low, high)
            seconds = table.stage_seconds(pair, 0, np.arange(low, high + 1))
            assert bound <= seconds.min() * (1 + 1e-12)
            if low >= 300:
                assert bound >= seconds.min() * 0.96


def test_every_count_is_covered_once() -> None:
    problem = random_problem(3, num_layers=1, num_pools=1, max_ranks=3)
    table = StageTable(problem.with_limits(np.array([5000])))
    options = make_options(table, floor=False)
    covered = [
        count
        for first, last in zip(options.ranks, options.max_ranks, strict=True)
        for count in range(first, last + 1)
    ]
    assert len(covered) == len(set(covered))
    seconds = table.stage_seconds(0, 0, np.arange(1, 5001))
    useful = 1 + np.flatnonzero(
        seconds < np.minimum.accumulate(np.concatenate([[np.inf], seconds[:-1]]))
    )
    fits = table.fits(0, 0, useful)
    assert set(useful[fits].tolist()) <= set(covered)
    assert len(useful) > 100
