"""What the exact solver starts from, and what it says early of a proof that will not come."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from benchmarks.schedulers.families import FAMILIES, question
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact import cutting, solver
from heterps_hpc.plan.exact.bounds import Incumbent
from heterps_hpc.plan.exact.deadline import Deadline
from heterps_hpc.plan.exact.first_plans import first_plans, local_plan
from heterps_hpc.plan.exact.graph import make_options
from tests.plan.instances import random_problem


@pytest.fixture(scope="module")
def hard() -> StageTable:
    """Nodes billed whole, a tight floor, 40 layers on 8 pools: no shortest path keeps to both."""
    return StageTable(
        question(replace(FAMILIES["nodes"], layers=(40, 40), pools=(8, 8)), "tune", 14)
    )


def test_small_changes_find_a_plan_where_no_shortest_path_is_one(hard: StageTable) -> None:
    incumbent = Incumbent(hard, with_money=True)
    first_plans(hard, make_options(hard), incumbent)
    assert incumbent.choices is None
    local_plan(hard, incumbent, Deadline.after(600))
    assert incumbent.choices is not None
    assert hard.evaluate(incumbent.choices).valid


def test_what_will_not_be_proven_is_said_early(
    hard: StageTable, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "SPEAK_SECONDS", 0.0)
    with caplog.at_level(logging.INFO):
        answer = solver.solve(hard, seconds=6.0, clock=time.process_time)
    assert not answer.proven
    assert 0 < answer.bound < answer.value
    assert any(line.startswith("a proof within") for line in caplog.messages)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        easy = solver.solve(StageTable(random_problem(5, num_layers=6, num_pools=3, max_ranks=8)))
    assert easy.proven
    assert not caplog.messages
