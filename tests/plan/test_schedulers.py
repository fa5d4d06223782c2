"""All schedulers of the one list: valid plans, certified gaps, repeatable learning."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from heterps_hpc.errors import UserError
from heterps_hpc.plan.cost_model import StageTable, stages_of
from heterps_hpc.plan.exact.solver import solve
from heterps_hpc.plan.schedulers import SCHEDULERS, scheduler
from heterps_hpc.plan.search import Budget
from tests.plan.instances import random_problem


def _table(seed: int, num_layers: int = 6, num_pools: int = 3) -> StageTable:
    problem = random_problem(seed, num_layers=num_layers, num_pools=num_pools, most_ranks=8)
    fastest = solve(StageTable(problem), objective="seconds")
    return StageTable(problem.with_floor(problem.batch_size / fastest.value / 3))


@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_plans_are_valid_and_never_beat_the_optimum(name: str) -> None:
    found_some = 0
    for seed in (1, 2, 5):
        table = _table(seed)
        optimum = solve(table)
        assert optimum.proven
        found = SCHEDULERS[name](table, Budget(seconds=3, seed=0, most_placements=3000))
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
    budget = Budget(seconds=60, seed=7, most_placements=2000)
    first, second = (SCHEDULERS[name](table, budget) for _ in range(2))
    assert first.choices == second.choices
    assert [point[1:] for point in first.curve] == [point[1:] for point in second.curve]


def test_rl_stops_at_a_known_optimum() -> None:
    table = _table(2)
    optimum = solve(table)
    found = SCHEDULERS["rl"](table, Budget(seconds=60, optimum=optimum.value))
    assert found.money == pytest.approx(optimum.value, rel=1e-8)
    assert found.seconds < 30


def test_rl_learns() -> None:
    """Without the simple rules it still gets better: the mean of the draws must fall."""
    from heterps_hpc.plan import policy
    from heterps_hpc.plan.search import Search

    table = _table(3, num_layers=10, num_pools=4)
    means = []

    class Noted(Search):
        def score(self, placements: np.ndarray) -> np.ndarray:  # type: ignore[override]
            money = super().score(placements)
            means.append(float(np.log(money).mean()))
            return money

    policy._learn(Noted(table, Budget(seconds=30, most_placements=8000)), "lstm", 1)
    assert np.mean(means[-5:]) < np.mean(means[:5]) - 0.1


def test_unknown_scheduler_is_refused_with_a_hint() -> None:
    with pytest.raises(UserError, match="did you mean 'greedy'"):
        scheduler("greedi")


def test_baselines_need_neither_torch_nor_mpi() -> None:
    code = (
        "import sys; import heterps_hpc.plan.planner as m\n"
        "from tests.plan.instances import random_problem\n"
        "from heterps_hpc.plan.cost_model import StageTable\n"
        "from heterps_hpc.plan.search import Budget\n"
        "t = StageTable(random_problem(1, num_layers=4, num_pools=2, most_ranks=4))\n"
        "for name in ('greedy', 'heuristic', 'exact', 'cpu-only'):\n"
        "    m.SCHEDULERS[name](t, Budget(seconds=5))\n"
        "bad = {'torch', 'mpi4py', 'horovod'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
