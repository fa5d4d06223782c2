"""What planning prints: readable at 80 columns, in words and units of people, nothing cut."""

from __future__ import annotations

import io
import logging
import os
import re
import time

import pytest
from rich.console import Console

from heterps_hpc.plan import remedies as remedies_file
from heterps_hpc.plan.exact.milp import silent
from heterps_hpc.plan.explain import best_throughput
from heterps_hpc.plan.goals import Limits, floor_limit
from heterps_hpc.plan.planner import layout_from, make_plan
from heterps_hpc.plan.question import Question
from heterps_hpc.plan.remedies import find_remedies
from heterps_hpc.plan.terminal import show
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
