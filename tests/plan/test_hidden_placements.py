"""Good placements that look bad at first: late by the ranks of the grid, or dear by their score."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.schedulers.families import FAMILIES, question
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.provision import provision
from heterps_hpc.plan.scorer import Scorer
from heterps_hpc.plan.search import Budget, Search


def test_a_placement_that_is_late_at_first_is_improved_after_a_good_one() -> None:
    """Where fixed and serial parts are large, the ranks of the grid miss the floor by far."""
    table = StageTable(question(FAMILIES["crossing"], "judge", 1))
    good = np.array([[1, 4, 1, 1, 1, 1, 4, 5, 5, 5, 4, 1, 1, 0, 3, 2, 1]])
    better = good.copy()
    better[0, 1] = 2
    search = Search(table, Budget(seconds=60))
    assert search.score(good)[0] < np.inf
    exact = provision(table, better[0].tolist(), max_intervals=12)
    assert search.score(better)[0] <= exact.value * 1.01


@pytest.mark.parametrize(
    ("family", "placement"), [("mixed", "120202000001201111102"), ("nodes", "1010000100001010110")]
)
def test_a_thorough_look_starts_from_several_plans(family: str, placement: str) -> None:
    """The best plan of the grid leads to no plan at all, or to one that is 8 % dearer."""
    table = StageTable(question(FAMILIES[family], "judge", 3))
    pools = np.array([[int(pool) for pool in placement]])
    scores = Scorer(table, thorough=True).score(pools)
    exact = provision(table, pools[0].tolist(), max_intervals=12)
    assert scores.valid[0]
    assert scores.money[0] <= exact.value * 1.002
