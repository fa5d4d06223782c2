"""What planning prints: readable at 80 columns, in words and units of people, nothing cut."""

from __future__ import annotations

import io
import logging
import os
import re
import time

import pytest
from rich.console import Console

from heterps_hpc import format as fmt
from heterps_hpc.plan import remedies as remedies_file
from heterps_hpc.plan.exact.milp import silent
from heterps_hpc.plan.explain import best_throughput
from heterps_hpc.plan.goals import Limits, floor_limit
from heterps_hpc.plan.outcome import easier_plan, outcome_lines
from heterps_hpc.plan.planner import layout_from, make_plan
from heterps_hpc.plan.question import Question
from heterps_hpc.plan.remedies import find_remedies
from heterps_hpc.plan.terminal import money_line, show
from tests.plan.instances import random_problem
from tests.plan.test_make import small_cluster, small_job, small_model, small_profile

SCIENTIFIC = re.compile(r"\de[-+]\d")


def test_at_80_columns_nothing_is_cut_and_unproven_points_are_marked() -> None:
    model, job = small_model(), small_job(min_samples_per_second=30_000.0)
    cluster, profile = small_cluster(), small_profile(model)
    result = make_plan(job, cluster, profile, model, 3e4)  # a job of cents: small figures
    last = result.frontier[-1].model_copy(update={"gap_is_bound": True})
    result = result.model_copy(update={"frontier": (*result.frontier[:-1], last)})
    screen = io.StringIO()
    layout = layout_from(result, job, cluster, profile, model)
    show(result, layout, Console(file=screen))
    text = screen.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text.replace(" … ", "")  # between the first and the last layer of a stage
    assert not SCIENTIFIC.search(text)
    assert not re.search(r"\d{3,}\.\d %", text)  # 59 ×, not 5850.2 %
    assert " h\n" not in text
    assert re.search(r"frontier \(not +", text)
    assert text.startswith(f"{result.outcome[0][:60]}")
    # narrower still: fewer columns, whole words
    screen = io.StringIO()
    show(result, layout, Console(file=screen, width=60))
    narrow = screen.getvalue()
    assert ("compute" in text, "compute" in narrow) == (True, False)
    assert max(map(len, narrow.splitlines())) <= 60
    words = {*text.split(), *" ".join(result.outcome).split()}
    assert set(narrow.replace("─", "").split()) <= words


def test_bounds_and_floors_are_printed_on_the_side_on_which_they_hold() -> None:
    """No plan is cheaper than a bound as printed, and a floor as printed is reached."""
    model, job = small_model(), small_job(min_samples_per_second=30_000.0)
    result = make_plan(job, small_cluster(), small_profile(model), model, 1e9)
    bound = {"optimum_money": 12.3955, "gap": 0.00042, "gap_is_bound": True}
    open_ = result.model_copy(update={"plan": result.plan.model_copy(update=bound)})
    assert "bound $12.39 · gap ≤ 0.1 %" in money_line(open_.plan)
    assert "nothing better than $12.39 is possible" in outcome_lines(open_)[0]
    by_speed = {"optimum_money": None, "optimum_samples_per_second": 30_012.2}
    assert "bound 30,013 samples/s" in money_line(open_.plan.model_copy(update=by_speed))
    for gap, best in ((0.0, True), (0.0004, False)):
        chosen = result.plan.model_copy(update={"gap": gap})
        line = outcome_lines(result.model_copy(update={"plan": chosen}))[0]
        assert ("no plan is cheaper" in line) == best
    easier = easier_plan(result)
    assert easier is not None
    printed = re.search(r"lower \(([\d,]+) samples/s\)", outcome_lines(result)[1])
    assert printed is not None
    assert 0 <= easier.estimate.samples_per_second - float(printed[1].replace(",", "")) < 1


@pytest.mark.parametrize(
    ("value", "below", "above"),
    [(28_084.7, "28,084", "28,085"), (6.699, "6.69", "6.70"), (28_085.0, "28,085", "28,085")],
)
def test_a_rate_is_rounded_to_either_side(value: float, below: str, above: str) -> None:
    assert fmt.rate_at_least(value) == below
    assert fmt.rate_at_most(value) == above


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.0, "0.0 %"),
        (0.00001, "0.1 %"),
        (0.021, "2.1 %"),
        (0.9999, "2.0 ×"),
        (6.12, "7.2 ×"),
        (57.3, "59 ×"),
    ],
)
def test_a_gap_that_is_a_bound_is_rounded_up(fraction: float, text: str) -> None:
    assert fmt.gap_at_most(fraction) == text


def test_what_a_solver_prints_to_the_terminal_is_swallowed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with silent():
        os.write(1, b"a line of HiGHS")
    print("after")
    assert capfd.readouterr().out == "after\n"


def test_with_32_pools_an_explanation_keeps_to_its_time_and_speaks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(3, num_layers=8, num_pools=32, max_ranks=8)
    best = best_throughput(problem, 1.0)
    assert best is not None
    monkeypatch.setattr(remedies_file, "SECONDS_FOR_GOAL", 0.5)
    monkeypatch.setattr(remedies_file, "SPEAK_SECONDS", 0.0)
    question = Question(problem, Limits((floor_limit(2 * best.at_most),)))
    question = Question(problem.with_floor(question.limits.floor), question.limits)
    began = time.monotonic()
    with caplog.at_level(logging.INFO):
        remedies = find_remedies(question, seconds=1.5)
    assert time.monotonic() - began < 15
    assert remedies.of_goal
    assert any("of 32" in line for line in caplog.messages)
