"""Goals in the user's words: budgets, hours, deadlines, two at once, and what helps if there is no
plan."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest

from heterps_hpc import format as fmt
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Goal
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Estimate
from heterps_hpc.plan import outcome, planner
from heterps_hpc.plan.cost_model import estimate, money_of
from heterps_hpc.plan.explain import best_throughput
from heterps_hpc.plan.goals import Limits
from heterps_hpc.plan.planner import check_answer, make_plan, question_of
from heterps_hpc.plan.problem import problem_of_job
from heterps_hpc.plan.question import Question
from heterps_hpc.plan.schedulers import SCHEDULERS
from heterps_hpc.plan.search import Budget
from heterps_hpc.planning_result import PlanningResult
from tests.plan.enumeration import all_plans
from tests.plan.instances import random_problem
from tests.plan.test_make import small_cluster, small_job, small_model, small_profile

NUM_SAMPLES = 1e9
NOON = datetime(2030, 5, 1, 12, 0).astimezone()


def plan(cluster: Cluster | None = None, **goal: Any) -> PlanningResult:
    model = small_model()
    job, profile = small_job(**goal), small_profile(model)
    job = job.model_copy(update={"plan": job.plan.model_copy(update={"scheduler": "exact"})})
    return make_plan(job, cluster or small_cluster(), profile, model, NUM_SAMPLES)


def answer(start: datetime | None = None, num_done: float = 0.0, **goal: Any) -> GoalAnswer:
    """The exact solver's answer to a goal, or the error that explains why there is none."""
    job, profile = small_job(**goal), small_profile(small_model())
    problem = problem_of_job(profile, small_cluster(), job, NUM_SAMPLES)
    question = question_of(job, problem, start, num_done)
    optimum = question.certify(20.0)
    check_answer(question, optimum)
    assert optimum.choices is not None
    assert optimum.proven
    return GoalAnswer(question, estimate(question.table, optimum.choices))


class GoalAnswer(NamedTuple):
    question: Question
    estimate: Estimate

    @property
    def floor(self) -> float:
        return self.question.limits.floor


@pytest.mark.parametrize("seed", range(5))
def test_the_fastest_plan_within_a_budget_is_that_of_an_enumeration(seed: int) -> None:
    problem = random_problem(seed, num_layers=3, num_pools=2, max_ranks=4)
    every = [(t, money_of(problem, t, price)) for _, t, price in all_plans(problem)]
    best = best_throughput(problem)
    if not every or best is None:
        assert (not every) == (best is None)
        return
    moneys = sorted(money for _, money in every)
    for budget in (moneys[len(moneys) // 3], moneys[2 * len(moneys) // 3], moneys[0] * 0.99):
        question = Question(problem, Limits((), budget), best)
        answer = question.certify(20.0)
        within = [seconds for seconds, money in every if money <= budget * (1 + 1e-9)]
        assert answer.proven
        if not within:
            assert answer.choices is None
            continue
        assert answer.value == pytest.approx(min(within), rel=3e-6)
        own = question.ask(SCHEDULERS["greedy"], Budget(seconds=1.0))
        if own.choices is not None:  # by its own plans, so no better than the optimum
            assert own.money <= budget * (1 + 1e-9)
            assert question.cost(own.choices) >= min(within) * (1 - 1e-9)


def test_a_budget_buys_the_fastest_plan_and_the_next_faster_one_costs_more() -> None:
    result = plan(max_money=2.95)
    fast = result.plan.estimate
    assert fast.money <= 2.95
    assert result.plan.gap == 0.0
    assert result.plan.optimum_samples_per_second == pytest.approx(fast.samples_per_second)
    faster = answer(min_samples_per_second=fast.samples_per_second * 1.0001)
    assert faster.estimate.money > 2.95
    assert "within $2.95" in result.outcome[0]


def test_hours_and_deadlines_are_floors_with_the_start_counted() -> None:
    by_hours = answer(max_hours=2.0, startup_minutes=6.0)
    assert by_hours.floor == pytest.approx(NUM_SAMPLES / (1.9 * 3600))
    assert by_hours.estimate.hours <= 1.9
    by_clock = answer(NOON, deadline="2030-05-01 14:00", startup_minutes=6.0)
    assert by_clock.floor == pytest.approx(by_hours.floor)
    assert by_clock.estimate == by_hours.estimate
    assert str(by_clock.question.limits.speed[0]) == "deadline 2030-05-01 14:00"
    both = answer(max_hours=2.0, startup_minutes=6.0, min_samples_per_second=1.0)
    assert both.floor == by_hours.floor  # the stricter of the two
    rest = answer(NOON, 0.75 * NUM_SAMPLES, deadline="2030-05-01 14:00", startup_minutes=0.0)
    assert rest.floor == pytest.approx(0.25 * NUM_SAMPLES / 7200)  # what is left to train


def test_a_deadline_is_a_day_a_minute_or_a_time_with_its_zone() -> None:
    def read(text: object) -> datetime:
        deadline = Goal.parse({"deadline": text}, "test").deadline
        assert deadline is not None
        return deadline

    assert read("2030-05-01 18:00") == datetime(2030, 5, 1, 18, 0).astimezone()
    assert read(datetime(2030, 5, 1).date()) == datetime(2030, 5, 1, 23, 59, 59).astimezone()
    assert read("2030-05-01") == read(datetime(2030, 5, 1).date())
    assert read("2030-05-01T18:00:00+00:00").utcoffset() == timedelta(0)
    with pytest.raises(UserError, match=r"deadline: got 'soon'; write a time such as"):
        read("soon")


def changes(error: UserError) -> dict[str, str]:
    """The remedies of a message, by key, as they are printed."""
    _, _, listed = str(error).partition("any one of these helps: ")
    parts = re.findall(r"(\w+(?: of pool '\w+')?): .*? → ([^;]+?)(?:;|$)", listed)
    return {key: value.replace(",", "") for key, value in parts}


@pytest.mark.parametrize(
    ("goal", "reason", "steps"),
    [
        ({"max_hours": 0.3}, "samples/s that max_hours 0.3 needs", {"max_hours": -1e-3}),
        ({"max_money": 1.0}, "no plan costs as little as max_money $1.00", {"max_money": -1e-2}),
        (
            {"max_hours": 0.6, "max_money": 3.0},
            "max_hours 0.6 needs within a max_money of $3.00",
            {"max_hours": -1e-3, "max_money": -1e-2},
        ),
    ],
)
def test_what_is_printed_for_a_goal_out_of_reach_is_the_least_that_helps(
    goal: dict[str, Any], reason: str, steps: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=re.escape(reason)) as caught:
        answer(**goal)
    monkeypatch.setattr(planner, "refuse", lambda _: UserError("refused"))
    for key, step in steps.items():
        needed = float(changes(caught.value)[key])
        answer(**{**goal, key: needed})
        with pytest.raises(UserError, match="refused"):
            answer(**{**goal, key: needed + step})


def test_a_deadline_out_of_reach_is_moved_to_the_minute() -> None:
    with pytest.raises(UserError, match="deadline 2030-05-01 12:20 needs") as caught:
        answer(NOON, deadline="2030-05-01 12:20")
    answer(NOON, deadline=changes(caught.value)["deadline"])
    with pytest.raises(UserError, match="training can begin at 2030-05-01 12:01"):
        answer(NOON, deadline="2030-05-01 12:01")
    with pytest.raises(UserError, match="no longer than starting takes"):
        answer(max_hours=0.01)


def test_two_limits_at_once_take_the_cheapest_plan_that_keeps_both() -> None:
    both = answer(max_hours=2.0, max_money=5.0).estimate
    assert both.money == answer(max_hours=2.0).estimate.money < 5.0
    assert both.hours <= 2.0
    question = answer(max_hours=2.0, max_money=5.0).question
    found = question.ask(SCHEDULERS["greedy"], Budget(seconds=1.0))
    assert found.choices is None  # what it finds for this floor costs $18.63


def test_the_outcome_begins_with_what_giving_way_would_save() -> None:
    """Eight CPU ranks reach 28,085 samples/s; for a little more an expensive rank is needed."""
    cpu, gpu = small_cluster().pools
    result = plan(
        Cluster(pools=(cpu, gpu.model_copy(update={"price_per_hour": 100.0}))),
        min_samples_per_second=30_000.0,
    )
    money = result.plan.estimate.money
    easier = outcome.easier_plan(result)
    assert easier is not None
    assert easier.estimate.samples_per_second == pytest.approx(28_085, rel=1e-3)
    assert money > 20 * easier.estimate.money
    prices = f"{fmt.money(easier.estimate.money)} instead of {fmt.money(money)}"
    expected = f"With a floor 6.4 % lower (28,084 samples/s) it would cost {prices}."
    assert result.outcome[1] == expected
    assert "cpu-only has no plan that meets the goal" in result.outcome[2]


def test_kinds_that_lack_a_plan_for_the_same_reason_share_a_clause() -> None:
    result = plan(small_cluster(), min_fraction_of_best=0.99)
    without = {"without_plan": outcome.ONE_KIND, "why_no_plan": {}, "alternatives": ()}
    last = outcome.outcome_lines(result.model_copy(update=without))[-1]
    assert last.endswith(": cpu-only and gpu-only have no plan that meets the goal.")
