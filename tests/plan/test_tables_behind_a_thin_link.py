"""A stage of tables alone is not ruled out for what it reads over a link: nobody waits for that."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.schedulers.certificates import SMALL, least_money
from benchmarks.schedulers.families import draw
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact.solver import solve


def test_tables_that_read_activations_over_a_thin_link_have_a_plan() -> None:
    problem = draw(SMALL, np.random.default_rng([4711, 533]))
    fastest = least_money(problem, seconds_only=True)
    problem = problem.with_floor(0.9 * problem.batch_size / fastest)
    assert solve(StageTable(problem)).value == pytest.approx(least_money(problem), rel=1e-6)
