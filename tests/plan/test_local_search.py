"""Offspring reach in one step what single changes reach only by way of worse placements."""

from __future__ import annotations

import numpy as np

from heterps_hpc.plan.cost_model import stages_of
from heterps_hpc.plan.local_search import offspring


def test_offspring_may_differ_in_two_places_or_have_a_run_of_another() -> None:
    rng = np.random.default_rng(0)
    alone = np.zeros((1, 12), dtype=np.int64)
    runs = [stages_of(row.tolist()) for row in offspring(alone, 500, 3, rng)]
    assert any(len(run) == 5 for run in runs)  # 0 a 0 b 0
    two = np.array([[0] * 12, [1, 2] * 6])
    tries = offspring(two, 500, 3, rng)
    ends, inside = tries[:, [0, 1, 10, 11]], tries[:, 3:9]
    assert ((ends == 0).all(axis=1) & (inside == two[1, 3:9]).all(axis=1)).any()
