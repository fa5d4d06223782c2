"""All schedulers of the one list: valid plans, certified gaps, repeatable learning."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from heterps_hpc.errors import UserError
from heterps_hpc.plan.cost_model import StageTable, stages_of
from heterps_hpc.plan.exact.solver import solve
from heterps_hpc.plan.problem import Problem
from heterps_hpc.plan.schedulers import SCHEDULERS, scheduler
from heterps_hpc.plan.search import Budget, Search
from tests.plan.instances import random_problem


def _table(seed: int, num_layers: int = 6, num_pools: int = 3) -> StageTable:
    problem = random_problem(seed, num_layers=num_layers, num_pools=num_pools, max_ranks=8)
    fastest = solve(StageTable(problem), objective="seconds")
    return StageTable(problem.with_floor(problem.batch_size / fastest.value / 3))


@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_plans_are_valid_and_never_beat_the_optimum(name: str) -> None:
    found_some = 0
    for seed in (1, 2, 5):
        table = _table(seed)
        optimum = solve(table)
        assert optimum.proven
        found = SCHEDULERS[name](table, Budget(seconds=3, seed=0, max_placements=3000))
        if found.choices is None:
            continue
        found_some += 1
        placement = [c.pool for c in found.choices for _ in range(c.first, c.last + 1)]
        assert [(c.first, c.last, c.pool) for c in found.choices] == stages_of(placement)
        assert table.evaluate(found.choices).valid
        assert found.money >= optimum.value * (1 - 1e-9)
        if name in ("exact", "brute-force", "rl", "rl-rnn"):
            assert found.money == pytest.approx(optimum.value, rel=1e-6)
    assert found_some or name in ("cpu-only", "gpu-only", "heuristic")


@pytest.mark.parametrize("name", ["rl", "rl-rnn"])
def test_learning_is_repeatable(name: str) -> None:
    table = _table(5, num_layers=8)
    budget = Budget(seconds=60, seed=7, max_placements=2000)
    first, second = (SCHEDULERS[name](table, budget) for _ in range(2))
    assert first.choices == second.choices
    assert [point[1:] for point in first.curve] == [point[1:] for point in second.curve]


def test_rl_ends_by_itself_once_nothing_new_comes() -> None:
    small = StageTable(random_problem(2, num_layers=4, num_pools=2, max_ranks=8))
    found = SCHEDULERS["rl"](small, Budget(seconds=60))
    assert found.complete
    assert found.num_placements <= 16  # all there are
    assert found.seconds < 30
    assert found.money == pytest.approx(solve(small).value)


def test_rl_learns_from_nothing() -> None:
    """Without weights it still gets better: the mean of the draws must fall."""
    from heterps_hpc.plan import policy

    table = _table(3, num_layers=10, num_pools=4)
    means = []

    class Noted(Search):
        def score(self, placements: np.ndarray) -> np.ndarray:  # type: ignore[override]
            money = super().score(placements)
            if len(placements) == policy.NUM_DRAWS:
                means.append(float(np.log(money).mean()))
            return money

    search = Noted(table, Budget(seconds=60, max_placements=6000))
    policy.learn(search, *policy.make_policy("lstm", 1, pretrained=False), 1)
    assert np.mean(means[-3:]) < means[0] - 0.1


def test_rl_tries_new_placements_rather_than_those_it_has_seen() -> None:
    """Mutations of a few good placements mostly repeat, and those are left out."""
    budget = Budget(60, max_placements=5000, clock=time.process_time)
    found = SCHEDULERS["rl"](_table(3, 12, 4), budget)
    assert found.num_placements > 2000


def test_what_was_looked_at_is_left_out_and_nothing_comes_twice() -> None:
    search = Search(_table(1, 4, 3), Budget())
    search.score(np.array([[0, 1, 2, 0], [1, 1, 1, 1]]))
    tries = np.array([[2, 2, 2, 2], [1, 1, 1, 1], [0, 0, 1, 1], [2, 2, 2, 2]])
    assert search.unseen(tries).tolist() == [[2, 2, 2, 2], [0, 0, 1, 1]]


def _permuted(problem: Problem, order: list[int]) -> Problem:
    """The question with its pools in another order."""
    pools, layers = problem.pools, problem.layers
    by_pool = {f.name: getattr(pools, f.name) for f in fields(pools)}
    moved = {
        name: tuple(values[i] for i in order) if isinstance(values, tuple) else values[order]
        for name, values in by_pool.items()
        if values is not None and len(values)
    }
    times = {name: getattr(layers, name)[:, order] for name in ("OCT", "alpha", "ODT", "beta")}
    return replace(problem, pools=replace(pools, **moved), layers=replace(layers, **times))


@pytest.mark.parametrize("cell", ["lstm", "elman"])
def test_the_policy_reads_pools_in_any_order(cell: str) -> None:
    """Pools in another order give the permuted placement, with the same probability."""
    from heterps_hpc.plan.features import features_of
    from heterps_hpc.plan.policy import make_policy

    problem = _table(4, num_layers=9, num_pools=5).problem
    order = [3, 0, 4, 1, 2]
    policy, _ = make_policy(cell, 3)
    tables = StageTable(problem), StageTable(_permuted(problem, order))
    first, second = (features_of(table) for table in tables)
    greedy, permuted = policy.draw(first, 1, None), policy.draw(second, 1, None)
    assert len(set(greedy[0])) > 1 or greedy[0][0] != order.index(greedy[0][0])
    assert np.array(order)[permuted].tolist() == greedy.tolist()
    placements = np.random.default_rng(0).integers(0, 5, (20, 9))
    own = policy(first, np.array(order)[placements])[0].detach().numpy()
    other = policy(second, placements)[0].detach().numpy()
    np.testing.assert_allclose(own, other, rtol=1e-4)


def test_draws_follow_the_probabilities() -> None:
    """`draw` goes layer by layer and `forward` over all at once: one distribution."""
    import torch

    from heterps_hpc.plan.features import features_of
    from heterps_hpc.plan.policy import make_policy

    features = features_of(_table(5, num_layers=3, num_pools=2))
    policy, _ = make_policy("lstm", 1, pretrained=False)
    torch.nn.init.normal_(policy.q.weight, generator=torch.Generator().manual_seed(0))
    drawn = policy.draw(features, 4000, torch.Generator().manual_seed(0))
    kinds, counts = np.unique(drawn, axis=0, return_counts=True)
    expected = policy(features, kinds)[0].exp().detach().numpy()
    assert len(kinds) > 2
    np.testing.assert_allclose(counts / 4000, expected, atol=0.03)


def test_the_shipped_weights_are_small_and_used() -> None:
    from heterps_hpc.plan.policy import WEIGHTS, make_policy

    assert WEIGHTS.stat().st_size < 1_000_000
    for cell in ("lstm", "elman"):
        assert make_policy(cell, 0)[1]


def test_without_weights_the_policy_learns_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heterps_hpc.plan import policy

    monkeypatch.setattr(policy, "WEIGHTS", tmp_path / "none")
    assert not policy.make_policy("lstm", 0)[1]
    found = policy.rl(_table(1), Budget(seconds=20, max_placements=3000))
    assert found.choices is not None


def test_time_for_provisioning_is_reserved() -> None:
    """Placements whose score is rough get their ranks although the time to search is used up."""
    improved = 0
    for seed in range(6):
        table, now = _table(seed, num_layers=6, num_pools=2), [0.0]
        search = Search(table, Budget(seconds=1.0, clock=lambda now=now: now[0]))
        search.scorer._improve = lambda block, place, value: place  # type: ignore[method-assign]
        search.score(np.array(list(itertools.product(range(2), repeat=6))))
        rough, now[0] = search.money, 0.95
        assert search.over
        found = search.found()
        assert found.money == pytest.approx(solve(table).value, rel=1e-6)
        improved += found.money < rough * 0.99
    assert improved > 0


def test_unknown_scheduler_is_refused_with_a_hint() -> None:
    with pytest.raises(UserError, match="did you mean 'greedy'"):
        scheduler("greedi")


def test_baselines_need_neither_torch_nor_mpi() -> None:
    code = (
        "import sys; from heterps_hpc.plan import planner as m\n"
        "from tests.plan.instances import random_problem\n"
        "from heterps_hpc.plan.cost_model import StageTable\n"
        "from heterps_hpc.plan.search import Budget\n"
        "t = StageTable(random_problem(1, num_layers=4, num_pools=2, max_ranks=4))\n"
        "for name in ('greedy', 'heuristic', 'exact', 'cpu-only'):\n"
        "    m.SCHEDULERS[name](t, Budget(seconds=5))\n"
        "bad = {'torch', 'mpi4py', 'horovod'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
