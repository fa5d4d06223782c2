"""Offspring reach in one step what single changes reach only by way of worse placements."""

from __future__ import annotations

import numpy as np

from heterps_hpc.plan.cost_model import stages_of
from heterps_hpc.plan.local_search import offspring
from heterps_hpc.plan.policy import apart


def test_offspring_may_differ_in_two_places_or_have_a_run_of_another() -> None:
    rng = np.random.default_rng(0)
    alone = np.zeros((1, 12), dtype=np.int64)
    runs = [stages_of(row.tolist()) for row in offspring(alone, 500, 3, rng)]
    assert any(len(run) == 5 for run in runs)  # 0 a 0 b 0
    two = np.array([[0] * 12, [1, 2] * 6])
    tries = offspring(two, 500, 3, rng)
    ends, inside = tries[:, [0, 1, 10, 11]], tries[:, 3:9]
    assert ((ends == 0).all(axis=1) & (inside == two[1, 3:9]).all(axis=1)).any()


def test_offspring_may_be_a_placement_with_a_run_of_one_that_was_drawn() -> None:
    rng = np.random.default_rng(0)
    best, drawn = np.zeros((1, 8), dtype=np.int64), np.arange(1, 9)[None]
    tries = offspring(best, 500, 3, rng, drawn)  # of pools 0 to 2 unless they were drawn
    some, all_ = (tries == drawn).sum(axis=1), (tries == drawn) | (tries == 0)
    assert ((some >= 3) & all_.all(axis=1)).any()


def test_the_best_are_kept_and_the_best_that_are_unlike_them() -> None:
    rows = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    assert apart(rows, 3, 1) == [0, 1, 3]
    assert apart(rows, 3, 3) == [0, 3]
