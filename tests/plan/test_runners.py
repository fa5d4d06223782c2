"""Runner-up plans, the memory that snapshots take, and floors that rest on a bound."""

from __future__ import annotations

import dataclasses
import io
import math
import time

import numpy as np
import pytest
from rich.console import Console

from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.plan import planner
from heterps_hpc.plan.cost_model import StageTable, stages_of
from heterps_hpc.plan.exact.solver import solve
from heterps_hpc.plan.explain import Best, next_placement, runners_up, why
from heterps_hpc.plan.planner import layout_from, make_plan
from heterps_hpc.plan.problem import problem_of_job
from heterps_hpc.plan.terminal import show, summary_lines
from tests.plan.enumeration import all_plans
from tests.plan.instances import random_problem
from tests.plan.test_make import small_cluster, small_job, small_model, small_profile


def _text(job: Job) -> str:
    model, cluster = small_model(), small_cluster()
    profile = small_profile(model)
    result = make_plan(job, cluster, profile, model, 1e6)
    screen = io.StringIO()
    show(result, layout_from(result, job, cluster, profile, model), Console(file=screen, width=250))
    return screen.getvalue()


@pytest.mark.parametrize("seed", range(12))
def test_the_next_placement_is_the_best_of_all_others(seed: int) -> None:
    problem = random_problem(seed, num_layers=4, num_pools=2, max_ranks=3)
    table = StageTable(problem)
    chosen = solve(table).choices
    if chosen is None:
        assert next(iter(all_plans(problem)), None) is None
        return
    own = [(c.first, c.last, c.pool) for c in chosen]
    others = [
        seconds * price
        for stages, seconds, price in all_plans(problem)
        if [stage[:3] for stage in stages] != own
    ]
    found = next_placement(table, chosen, time.monotonic() + 30)
    assert found.proven
    assert (found.choices is None) == (not others)
    if found.choices is not None:
        placement = [c.pool for c in found.choices for _ in range(c.first, c.last + 1)]
        assert stages_of(placement) != own
        assert found.value == pytest.approx(min(others) * problem.num_batches / 3600, rel=2e-6)


def test_runners_up_avoid_a_pool_and_are_no_cheaper_than_the_optimum() -> None:
    model, job = small_model(), small_job(min_samples_per_second=20_000.0)
    problem = problem_of_job(small_profile(model), small_cluster(), job, 1e6)
    table = StageTable(problem)
    best = solve(table)
    assert best.choices is not None
    runners, _, _ = runners_up(table, best.choices)
    assert runners
    assert all(runner.plan.estimate.money >= best.value * (1 - 1e-9) for runner in runners)
    for runner in runners:
        for pool in problem.pools.names:
            if f"without {pool}" in runner.what:
                assert pool not in runner.plan.placement.values()
    assert len({runner.plan.stages for runner in runners}) == len(runners)


def test_why_a_plan_loses_names_hours_and_price() -> None:
    model = small_model()
    chosen = make_plan(small_job(), small_cluster(), small_profile(model), model, 1e6).plan.estimate

    def changed(hours: float, price: float) -> str:
        update = {
            "hours": chosen.hours * hours,
            "money_per_hour": chosen.money_per_hour * price,
            "money": chosen.money * hours * price,
        }
        return why(chosen.model_copy(update=update), chosen)

    assert changed(1.5, 0.9) == "takes 50.0 % longer but costs 10.0 % less per hour"
    assert changed(1.5, 1.1) == "takes 50.0 % longer and costs 10.0 % more per hour"
    assert changed(0.9, 1.5) == "takes 10.0 % less but costs 50.0 % more per hour"
    assert changed(1.0, 1.2) == "as fast, but costs 20.0 % more per hour"
    assert changed(1.2, 1.0) == "takes 20.0 % longer at the same price"
    assert changed(1.0, 1.0) == "costs the same"
    assert changed(9.0, 0.5) == "takes 9.0 times as long but costs 50.0 % less per hour"
    assert changed(0.9, 9.0) == "takes 10.0 % less but costs 9.0 times as much per hour"
    assert changed(0.9, 0.9) == "it does not: the scheduler missed it"


def test_the_table_shows_runners_up_memory_and_money_per_epoch() -> None:
    text = _text(small_job())
    for word in ("runner-up plans", "why it loses", "MB per rank", "/epoch"):
        assert word in text
    assert "snapshot" not in text  # nothing is saved alongside training


def test_saves_alongside_training_need_memory_for_their_copies() -> None:
    job = small_job()
    saving = job.model_copy(
        update={"checkpoint": job.checkpoint.model_copy(update={"every_steps": 100})}
    )
    assert "snapshot" in _text(saving)
    model = small_model()
    profile, cluster = small_profile(model), small_cluster()
    plain = StageTable(problem_of_job(profile, cluster, job, 1e6))
    doubled = StageTable(problem_of_job(profile, cluster, saving, 1e6))
    pairs = np.arange(len(plain.pairs))
    assert (doubled.memory(pairs, 2).snapshot == plain.memory(pairs, 2).tables).all()
    assert not plain.memory(pairs, 2).snapshot.any()


def test_a_snapshot_that_does_not_fit_is_named_as_the_cause() -> None:
    model = small_model()
    profile = small_profile(model)
    capacity = sum(
        pool.memory_per_rank_bytes * pool.rank_limit for pool in small_cluster().pools[:1]
    )  # tables fill the CPU pool to three quarters: no space for a copy
    layers = (profile.layers[0].model_copy(update={"table_bytes_total": 0.75 * capacity}),)
    full = profile.model_copy(update={"layers": layers + profile.layers[1:]})
    job = small_job()
    one = small_cluster().model_copy(update={"pools": small_cluster().pools[:1]})
    make_plan(job, one, full, model, 1e6)
    saving = job.model_copy(
        update={"checkpoint": job.checkpoint.model_copy(update={"every_minutes": 5.0})}
    )
    with pytest.raises(UserError, match="saves alongside training"):
        make_plan(saving, one, full, model, 1e6)


def test_a_floor_that_rests_on_an_unproven_best_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    real = planner.best_throughput

    def unproven(*args: object, **kwargs: object) -> Best | None:
        best = real(*args, **kwargs)  # type: ignore[arg-type]
        assert best is not None
        assert best.proven
        return dataclasses.replace(best, at_most=2 * best.samples_per_second)

    proven = make_plan(small_job(), small_cluster(), small_profile(model), model, 1e6)
    assert not any("bound" in line for line in summary_lines(proven))
    monkeypatch.setattr(planner, "best_throughput", unproven)
    result = make_plan(small_job(), small_cluster(), small_profile(model), model, 1e6)
    assert result.best is not None
    assert math.isclose(result.best_at_most or 0, 2 * result.best)
    assert any("bound: the floor is a fraction of" in line for line in summary_lines(result))
