"""From profile to plan: what `heterps plan` does, and everything that is known about its answer."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import replace

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout, Plan
from heterps_hpc.model import Model
from heterps_hpc.plan.baselines import why_no_plan
from heterps_hpc.plan.cost_model import StageTable, memory_of, to_plan
from heterps_hpc.plan.exact.solver import Solution, solve
from heterps_hpc.plan.explain import (
    Best,
    best_throughput,
    frontier,
    runners_up,
)
from heterps_hpc.plan.problem import Problem, problem_of_job
from heterps_hpc.plan.remedies import number, refuse
from heterps_hpc.plan.schedulers import CHEAP, SCHEDULERS, scheduler
from heterps_hpc.plan.search import Budget, Found
from heterps_hpc.planning_result import CurvePoint, PlanningResult
from heterps_hpc.profile import Profile
from heterps_hpc.sharding import bind_plan

log = logging.getLogger(__name__)

EXACT_SECONDS = 20.0
LEAST_FLOOR = 1e-2  # samples per second
DAY_SECONDS = 86_400.0
LEARNED = ("rl", "rl-rnn")


def make_plan(
    job: Job, cluster: Cluster, profile: Profile, model: Model, num_samples: float
) -> PlanningResult:
    """Plan a job of `num_samples` samples in all."""
    decide = scheduler(job.plan.scheduler)
    profile.check_model(model)
    problem = problem_of_job(profile, cluster, job, num_samples)
    problem, best = _with_goal(problem, job)
    table = StageTable(problem)
    start = None if best is None else best.choices
    optimum = solve(table, seconds=EXACT_SECONDS, start=start)
    if optimum.choices is None:
        raise _no_plan(problem, optimum)
    known = optimum.value if optimum.proven else None
    budget = Budget(seconds=job.plan.seconds, seed=job.plan.seed, optimum=known)
    name, found = job.plan.scheduler, decide(table, budget)
    if found.choices is None and name in LEARNED:
        log.warning("%s found no plan in %.0f s; taking the exact solver's", name, found.seconds)
        name = "exact"
        found = replace(found, choices=optimum.choices, money=optimum.value)
    if found.choices is None:
        raise UserError(
            f"scheduler {name!r} found no plan that reaches {problem.floor:,.0f} samples/s "
            f"({why_no_plan(problem, name)}); use 'rl' or 'exact', which find one if there is any"
        )
    return _result(job, profile, table, name, found, optimum, best, budget)


def _with_goal(problem: Problem, job: Job) -> tuple[Problem, Best | None]:
    """The question with its floor; a fraction of the best needs the best first."""
    if job.goal.min_fraction_of_best is None:
        return problem, None
    best = best_throughput(problem, EXACT_SECONDS / 2)
    if best is None:
        raise refuse(problem)
    floor = best.samples_per_second * job.goal.min_fraction_of_best
    return problem.with_floor(floor * (1 - 1e-9)), best


def extrapolated(profile: Profile, plan: Plan) -> Iterator[str]:
    """Stages whose times were not measured with so many ranks."""
    for index, stage in enumerate(plan.stages):
        counts = [profile.timing(name, stage.pool).rank_counts for name in stage.layers]
        largest = min((max(measured) for measured in counts if measured), default=None)
        if largest is not None and stage.num_ranks > largest:
            yield (
                f"stage {index} has {stage.num_ranks} ranks of {stage.pool}, measured with up to "
                f"{largest}"
            )


def remarks(job: Job, profile: Profile, problem: Problem) -> Iterator[str]:
    """Values that are allowed, and are probably not what was meant."""
    if 0 < problem.floor < LEAST_FLOOR:
        yield f"the floor of {number(problem.floor)} samples/s is so low that every plan meets it"
    if job.plan.seconds > DAY_SECONDS:
        days = job.plan.seconds / DAY_SECONDS
        yield f"plan.seconds lets the scheduler think for {days:,.0f} days"
    for timing in profile.timings:
        if timing.compute_seconds > DAY_SECONDS:
            days = timing.compute_seconds / DAY_SECONDS
            yield (
                f"layer {timing.layer!r} takes {days:,.0f} days for one batch on pool "
                f"{timing.pool!r}, the profile says"
            )


def _result(
    job: Job,
    profile: Profile,
    table: StageTable,
    name: str,
    found: Found,
    optimum: Solution,
    best: Best | None,
    budget: Budget,
) -> PlanningResult:
    """Everything that is known about the plan that was found."""
    assert found.choices is not None
    problem = table.problem
    baselines = {name: SCHEDULERS[name](table, budget) for name in CHEAP}
    plan = certified(table, found, name, optimum)
    without = [rule for rule, other in baselines.items() if other.choices is None]
    nearly, needed = runners_up(table, found.choices)
    return PlanningResult(
        plan=plan,
        memory=memory_of(table, found.choices),
        alternatives=tuple(
            certified(table, other, rule, optimum)
            for rule, other in baselines.items()
            if other.choices is not None and rule != name
        ),
        runners_up=tuple(nearly),
        needed_pools=tuple(needed),
        frontier=tuple(frontier(problem)),
        learning_curve=tuple(
            CurvePoint(seconds=s, placements=n, money=m) for s, n, m in found.curve
        ),
        floor=problem.floor,
        best=None if best is None else best.samples_per_second,
        best_is_found=best is not None and not best.proven,
        best_at_most=best.at_most if best is not None and math.isfinite(best.at_most) else None,
        epochs=job.train.epochs if job.train.steps is None else None,
        num_placements=found.num_placements,
        scheduler_seconds=found.seconds,
        estimated_pools=tuple(profile.estimated_pools),
        extrapolated=tuple(extrapolated(profile, plan)),
        remarks=tuple(remarks(job, profile, problem)),
        without_plan=tuple(without),
        why_no_plan={rule: why_no_plan(problem, rule) for rule in without},
    )


def certified(table: StageTable, found: Found, name: str, optimum: Solution) -> Plan:
    """A scheduler's plan with its distance from the optimum."""
    assert found.choices is not None
    plan = to_plan(table, found.choices, name)
    if not math.isfinite(optimum.bound) or optimum.bound <= 0:
        return plan
    gap = max(0.0, plan.estimate.money / optimum.bound - 1)
    return plan.model_copy(
        update={
            "optimum_money": optimum.bound,
            "gap": 0.0 if gap < 1e-8 else gap,
            "gap_is_bound": not optimum.proven,
        }
    )


def layout_from(
    result: PlanningResult, job: Job, cluster: Cluster, profile: Profile, model: Model
) -> Layout:
    """The plan bound to ranks, with everything needed to run."""
    return bind_plan(
        result.plan.stages,
        model=model,
        cluster=cluster,
        job=job.name,
        num_partitions=job.train.tables.num_partitions,
        table_loads=profile.table_loads,
        plan=result.plan,
    )


def _no_plan(problem: Problem, optimum: Solution) -> UserError:
    if optimum.proven:
        return refuse(problem)
    return UserError(
        f"no plan for {problem.floor:,.0f} samples/s was found in {EXACT_SECONDS:.0f} s, and none "
        "was ruled out; lower the floor or use fewer pools"
    )
