"""From profile to plan: what `heterps plan` does, and everything that is known about its answer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout, Plan
from heterps_hpc.model import Model
from heterps_hpc.plan.baselines import why_no_plan
from heterps_hpc.plan.cost_model import Choice, StageTable, memory_of, to_plan
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

EXACT_SECONDS = 20.0
LEAST_FLOOR = 1e-2  # samples per second
DAY_SECONDS = 86_400.0
LEARNED = ("rl", "rl-rnn")
SAME_MONEY = 1e-6  # relative: what is no saving


def make_plan(
    job: Job, cluster: Cluster, profile: Profile, model: Model, num_samples: float
) -> PlanningResult:
    """Plan a job of `num_samples` samples in all."""
    decide = scheduler(job.plan.scheduler)
    profile.check_model(model)
    problem = problem_of_job(profile, cluster, job, num_samples)
    problem, best = _with_goal(problem, job)
    table = StageTable(problem)
    budget = Budget(seconds=job.plan.seconds, seed=job.plan.seed)
    own = decide(table, budget)  # knows neither the rules' plans nor the optimum
    baselines = {rule: SCHEDULERS[rule](table, budget) for rule in CHEAP}
    plans = [found for found in (own, *baselines.values()) if found.choices is not None]
    start = min(plans, key=lambda found: found.money).choices if plans else None
    if start is None and best is not None:
        start = best.choices
    optimum = solve(table, seconds=EXACT_SECONDS, start=start)
    if optimum.choices is None:
        raise _no_plan(problem, optimum)
    if own.choices is None and job.plan.scheduler not in LEARNED:
        raise UserError(
            f"scheduler {job.plan.scheduler!r} found no plan that reaches {problem.floor:,.0f} "
            f"samples/s ({why_no_plan(problem, job.plan.scheduler)}); use 'rl' or 'exact', which "
            "find one if there is any"
        )
    name, choices = _cheapest(job.plan.scheduler, own, baselines, optimum)
    return _result(job, profile, table, name, choices, own, baselines, optimum, best)


def _cheapest(
    asked: str, own: Found, baselines: dict[str, Found], optimum: Solution
) -> tuple[str, tuple[Choice, ...]]:
    """Whose plan is taken, and it: the asked scheduler's, but a learned one's only if no rule and
    not the exact solver has a cheaper one."""
    assert optimum.choices is not None
    if own.choices is not None and asked not in LEARNED:
        return asked, own.choices
    name, money, choices = asked, own.money, own.choices
    for rule, found in baselines.items():
        if found.choices is not None and found.money < money * (1 - SAME_MONEY):
            name, money, choices = rule, found.money, found.choices
    if choices is None or optimum.value < money * (1 - SAME_MONEY):
        name, choices = "exact", optimum.choices
    return name, choices


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
    choices: tuple[Choice, ...],
    own: Found,
    baselines: dict[str, Found],
    optimum: Solution,
    best: Best | None,
) -> PlanningResult:
    """Everything that is known about the plan that was taken."""
    problem, asked = table.problem, job.plan.scheduler
    plan = certified(table, choices, name, optimum)
    own_plan = None if own.choices is None else certified(table, own.choices, asked, optimum)
    others = {rule: found.choices for rule, found in baselines.items() if rule != name}
    alternatives = [
        certified(table, plan_of_rule, rule, optimum)
        for rule, plan_of_rule in others.items()
        if plan_of_rule is not None and rule != asked
    ]
    if own_plan is not None and name != asked:
        alternatives.insert(0, own_plan)
    without = [rule for rule, found in baselines.items() if found.choices is None]
    nearly, needed = runners_up(table, choices)
    return PlanningResult(
        plan=plan,
        memory=memory_of(table, choices),
        alternatives=tuple(alternatives),
        runners_up=tuple(nearly),
        needed_pools=tuple(needed),
        frontier=tuple(frontier(problem)),
        asked=asked,
        own_plan=own_plan,
        learning_curve=tuple(CurvePoint(seconds=s, placements=n, money=m) for s, n, m in own.curve),
        floor=problem.floor,
        best=None if best is None else best.samples_per_second,
        best_is_found=best is not None and not best.proven,
        best_at_most=best.at_most if best is not None and math.isfinite(best.at_most) else None,
        epochs=job.train.epochs if job.train.steps is None else None,
        num_placements=own.num_placements,
        scheduler_seconds=own.seconds,
        estimated_pools=tuple(profile.estimated_pools),
        extrapolated=tuple(extrapolated(profile, plan)),
        remarks=tuple(remarks(job, profile, problem)),
        without_plan=tuple(without),
        why_no_plan={rule: why_no_plan(problem, rule) for rule in without},
    )


def certified(table: StageTable, choices: tuple[Choice, ...], name: str, optimum: Solution) -> Plan:
    """A scheduler's plan with its distance from the optimum."""
    plan = to_plan(table, choices, name)
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
