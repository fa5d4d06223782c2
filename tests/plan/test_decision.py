"""Whose plan is taken: the learned scheduler searches alone, and a cheaper plan of others wins."""

from __future__ import annotations

import math
import re
from itertools import product
from typing import Any

import pytest

from heterps_hpc import format as fmt
from heterps_hpc.plan import planner, question
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact.solver import Solution
from heterps_hpc.plan.provision import provision
from heterps_hpc.plan.schedulers import SCHEDULERS
from heterps_hpc.plan.search import Budget, Found
from heterps_hpc.plan.terminal import learning_lines, search_lines
from heterps_hpc.planning_result import PlanningResult
from tests.plan.test_make import small_cluster, small_job, small_model, small_profile


def _plan(asked: str) -> PlanningResult:
    model, job = small_model(), small_job()
    job = job.model_copy(update={"plan": job.plan.model_copy(update={"scheduler": asked})})
    return planner.make_plan(job, small_cluster(), small_profile(model), model, 1e6)


def _expensive(table: StageTable, budget: Budget) -> Found:
    """The plan of an unlucky search: valid, and not the cheapest."""
    problem = table.problem
    pools = range(problem.num_pools)
    answers = [
        provision(table, placement) for placement in product(pools, repeat=problem.num_layers)
    ]
    worst = max((a for a in answers if a.choices is not None), key=lambda answer: answer.value)
    money = worst.value
    return Found(worst.choices, money, 0.5, 8, ((0.1, 3, money * 2), (0.2, 8, money)))


def test_rl_decides_before_anything_else_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(name: str, call: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            order.append(name)
            return call(*args, **options)

        return run

    for name in ("rl", "greedy", "heuristic"):
        monkeypatch.setitem(SCHEDULERS, name, noted(name, SCHEDULERS[name]))
    monkeypatch.setattr(question, "solve", noted("exact", question.solve))
    result = _plan("rl")
    assert order[0] == "rl"
    assert order.index("exact") > max(order.index("greedy"), order.index("heuristic"))
    assert result.asked == "rl"
    assert result.own_plan is not None
    assert result.num_placements > 0
    assert len(result.learning_curve) >= 1
    assert result.plan.scheduler == "rl"  # so small a question it solves by itself
    assert "by itself" in search_lines(result)[0]


def test_a_cheaper_plan_is_taken_from_the_exact_solver_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SCHEDULERS, "rl", _expensive)
    for rule in ("greedy", "heuristic", "cpu-only", "gpu-only"):
        monkeypatch.setitem(SCHEDULERS, rule, lambda *_: Found(None, math.inf, 0.0, 1))
    result = _plan("rl")
    assert result.own_plan is not None
    assert result.plan.scheduler == "exact"
    assert result.plan.gap == 0.0
    own, taken = result.own_plan.estimate.money, result.plan.estimate.money
    assert own > taken * 1.01
    line = search_lines(result)[0]
    assert "this plan is exact's, which started from the cheapest of the others" in line
    saved = re.search(r"cheaper by ([\d.]+) %$", line)
    assert saved is not None
    assert float(saved[1]) == pytest.approx(100 * (1 - taken / own), rel=0.05)
    assert result.alternatives[0].scheduler == "rl"
    assert [point.money for point in result.learning_curve][-1] == pytest.approx(own)
    curve = f"{fmt.money(2 * own)} after 3, {fmt.money(own)} after 8 placements"
    assert learning_lines(result) == [f"best plan while it searched: {curve}"]


@pytest.mark.parametrize(
    ("own", "text"),
    [(300.0, "99.7 %"), (5000.0, "99.9 %"), (1.024, "2.3 %"), (1.5, "33.3 %")],
)
def test_a_saving_is_printed_in_plain_figures(own: float, text: str) -> None:
    result = _plan("exact")
    of_own = result.plan.estimate.model_copy(update={"money": own * result.plan.estimate.money})
    own_plan = result.plan.model_copy(update={"estimate": of_own})
    dearer = result.model_copy(update={"asked": "rl", "own_plan": own_plan})
    assert search_lines(dearer)[0].endswith(f"cheaper by {text}")


def test_a_cheaper_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULERS, "rl", _expensive)
    for rule in ("greedy", "cpu-only", "gpu-only"):
        monkeypatch.setitem(SCHEDULERS, rule, lambda *_: Found(None, math.inf, 0.0, 1))
    monkeypatch.setitem(SCHEDULERS, "heuristic", SCHEDULERS["exact"])
    result = _plan("rl")
    assert result.plan.scheduler == "heuristic"
    assert "this plan is heuristic's, cheaper by" in search_lines(result)[0]


def test_rl_continues_from_a_plan_that_exact_could_not_prove(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it found by itself stays as it was; the plan is of both, and the line says so."""

    def out_of_time(table: StageTable, **_: Any) -> Solution:
        found = _expensive(table, Budget())
        return Solution(found.choices, found.money, found.money / 10, False)

    monkeypatch.setitem(SCHEDULERS, "rl", _expensive)
    for rule in ("greedy", "heuristic", "cpu-only", "gpu-only"):
        monkeypatch.setitem(SCHEDULERS, rule, lambda *_: Found(None, math.inf, 0.0, 1))
    with monkeypatch.context() as patched:
        patched.setattr(question, "solve", out_of_time)
        result = _plan("rl")
    assert result.own_plan is not None
    assert result.plan.scheduler == "rl and exact"
    assert result.plan.gap_is_bound
    own, taken = result.own_plan.estimate.money, result.plan.estimate.money
    assert taken < own * 0.99
    assert taken == pytest.approx(_plan("exact").plan.estimate.money)
    line = search_lines(result)[0]
    assert "of both: exact started from the cheapest, ran out of time, and rl continued" in line


def test_a_learned_scheduler_without_a_plan_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULERS, "rl", lambda *_: Found(None, math.inf, 2.0, 7))
    for rule in ("greedy", "heuristic", "cpu-only", "gpu-only"):
        monkeypatch.setitem(SCHEDULERS, rule, lambda *_: Found(None, math.inf, 0.0, 1))
    result = _plan("rl")
    assert result.own_plan is None
    assert result.plan.scheduler == "exact"
    assert search_lines(result) == [
        "search: rl found no plan by itself (7 placements in 2.00 s); this plan is exact's"
    ]
