"""From profile to plan: what `heterps plan` does, and everything that is known about its answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from heterps_hpc import format as fmt
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout, Plan
from heterps_hpc.model import Model
from heterps_hpc.plan.baselines import why_no_plan
from heterps_hpc.plan.cost_model import Choice, estimate, memory_of, placement_of, to_plan
from heterps_hpc.plan.exact.solver import Solution
from heterps_hpc.plan.explain import best_throughput, frontier, runners_up
from heterps_hpc.plan.goals import BELOW, Limits, limits_of, number
from heterps_hpc.plan.outcome import outcome_lines
from heterps_hpc.plan.problem import Problem, problem_of_job
from heterps_hpc.plan.provision import STATIC_RULES
from heterps_hpc.plan.question import WITHIN, Question
from heterps_hpc.plan.remedies import refuse
from heterps_hpc.plan.schedulers import CHEAP, SCHEDULERS, scheduler
from heterps_hpc.plan.search import Budget, Found
from heterps_hpc.planning_result import CurvePoint, PlanningResult, together
from heterps_hpc.profile import Profile
from heterps_hpc.sharding import bind_plan

EXACT_SECONDS = 20.0
LEAST_FLOOR = 1e-2  # samples per second
DAY_SECONDS = 86_400.0
LEARNED = ("rl", "rl-rnn")
IMPROVED = (*LEARNED, "exact")  # whose plan gives way to a cheaper one, if time ran out
SAME_COST = 1e-6  # relative: what is no saving


def make_plan(
    job: Job,
    cluster: Cluster,
    profile: Profile,
    model: Model,
    num_samples: float,
    *,
    start: datetime | None = None,
    num_done: float = 0.0,
) -> PlanningResult:
    """Plan a job of `num_samples` samples in all; `start` and `num_done` count for a deadline: when
    the ranks are expected to start, if not now, and the samples trained before."""
    decide = scheduler(job.plan.scheduler)
    profile.check_model(model)
    problem = problem_of_job(profile, cluster, job, num_samples)
    question = question_of(job, problem, start, num_done)
    budget = Budget(seconds=job.plan.seconds, seed=job.plan.seed)
    own = question.ask(decide, budget)  # knows neither the rules' plans nor the optimum
    own = provisioned(question, own, job.plan.provisioning)
    baselines = {rule: question.ask(SCHEDULERS[rule], budget) for rule in CHEAP}
    plans = [found.choices for found in (own, *baselines.values()) if found.choices is not None]
    begin = min(plans, key=question.cost, default=None)
    if begin is None and question.best is not None:
        begin = question.best.choices
    optimum = question.certify(EXACT_SECONDS, begin)
    check_answer(question, optimum)
    if own.choices is None and _keeps(job):
        raise _found_none(job, question)
    name, choices = _cheapest(job, question, own, baselines, optimum)
    if not optimum.proven and job.plan.scheduler in LEARNED and not _keeps(job):
        name, choices = _continued(job, question, name, choices)
    return _result(job, profile, question, name, choices, own, baselines, optimum)


def question_of(
    job: Job, problem: Problem, start: datetime | None = None, num_done: float = 0.0
) -> Question:
    """What the job asks; a fraction of the best, and a budget alone, need the best first."""
    best, goal = None, job.goal
    floors = (goal.min_samples_per_second, goal.max_hours, goal.deadline)
    if goal.min_fraction_of_best is not None or all(value is None for value in floors):
        best = best_throughput(problem, EXACT_SECONDS / 2)
        if best is None:
            raise refuse(Question(problem, Limits((), math.inf)))
    fastest = None if best is None else best.samples_per_second
    limits = limits_of(goal, problem, fastest, start, num_done)
    return Question(problem.with_floor(limits.floor), limits, best)


def check_answer(question: Question, optimum: Solution) -> None:
    """Refuse a question to which there is no answer, with what would help."""
    max_money = question.limits.max_money
    if optimum.choices is None:
        ruled_out = optimum.proven
    elif estimate(question.table, optimum.choices).money <= max_money * WITHIN:
        return
    else:
        ruled_out = optimum.bound > max_money
    if ruled_out:
        raise refuse(question)
    raise UserError(
        f"no plan that meets the goal was found in {EXACT_SECONDS:.0f} s, and none was ruled out; "
        "ask for less, or use fewer pools"
    )


def provisioned(question: Question, own: Found, rule: str) -> Found:
    """A scheduler's placement with the ranks of one of the paper's static rules, if asked for."""
    if rule == "least-money" or own.choices is None:
        return own
    if question.objective == "seconds":
        raise UserError(
            f"plan.provisioning {rule!r} gives ranks for a throughput floor, but the goal is a "
            "budget only; give it a limit of speed as well, or use 'least-money'"
        )
    choices = STATIC_RULES[rule](question.table, placement_of(own.choices))
    if choices is None or question.cost(choices) > question.limits.max_money * WITHIN:
        raise UserError(
            f"plan.provisioning {rule!r} has no plan that meets the goal for the placement of "
            "this scheduler; use 'least-money'"
        )
    return replace(own, choices=choices, money=question.cost(choices), curve=())


def _keeps(job: Job) -> bool:
    """Whether the asked scheduler's plan is taken even if another has a cheaper one."""
    return job.plan.scheduler not in IMPROVED or job.plan.provisioning != "least-money"


def _found_none(job: Job, question: Question) -> UserError:
    asked, limits = job.plan.scheduler, question.limits
    goals = [f"reaches {limits.floor:,.0f} samples/s"] if limits.floor else []
    goals += [f"costs {fmt.money(limits.max_money)} at most"] if limits.max_money < math.inf else []
    return UserError(
        f"scheduler {asked!r} found no plan that {' and '.join(goals)} "
        f"({why_no_plan(question.problem, asked)}); use 'rl' or 'exact', which find one if there "
        "is any"
    )


def _cheapest(
    job: Job, question: Question, own: Found, baselines: dict[str, Found], optimum: Solution
) -> tuple[str, tuple[Choice, ...]]:
    """Whose plan is taken, and it: the asked scheduler's; that of a learned one or of `exact` only
    if no rule and not the certificate has a better one."""
    assert optimum.choices is not None
    asked = job.plan.scheduler
    if own.choices is not None and _keeps(job):
        return asked, own.choices
    cost = math.inf if own.choices is None else question.cost(own.choices)
    name, choices = asked, own.choices
    for rule, found in baselines.items():
        if found.choices is not None and question.cost(found.choices) < cost * (1 - SAME_COST):
            name, cost, choices = rule, question.cost(found.choices), found.choices
    if choices is None or optimum.value < cost * (1 - SAME_COST):
        name, choices = "exact", optimum.choices
    return name, choices


def _continued(
    job: Job, question: Question, name: str, choices: tuple[Choice, ...]
) -> tuple[str, tuple[Choice, ...]]:
    """Where exact ran out of time: what the learned scheduler makes of the best plan of all, in its
    own time once more."""
    if question.objective == "seconds":  # a budget's question is several, each with its floor
        return name, choices
    from heterps_hpc.plan.policy import LEARNED_CELLS, reinforce

    budget = Budget(seconds=job.plan.seconds, seed=job.plan.seed)
    cell = LEARNED_CELLS[job.plan.scheduler]
    found = reinforce(question.table, budget, cell, start=choices)
    if found.choices is None or found.money >= question.cost(choices) * (1 - SAME_COST):
        return name, choices
    return together(job.plan.scheduler), found.choices


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
    question: Question,
    name: str,
    choices: tuple[Choice, ...],
    own: Found,
    baselines: dict[str, Found],
    optimum: Solution,
) -> PlanningResult:
    """Everything that is known about the plan that was taken."""
    problem, asked, best = question.problem, job.plan.scheduler, question.best
    plan = certified(question, choices, name, optimum)
    own_plan = None if own.choices is None else certified(question, own.choices, asked, optimum)
    others = {rule: found.choices for rule, found in baselines.items() if rule != name}
    alternatives = [
        certified(question, plan_of_rule, rule, optimum)
        for rule, plan_of_rule in others.items()
        if plan_of_rule is not None and rule != asked
    ]
    if own_plan is not None and name != asked:
        alternatives.insert(0, own_plan)
    without = [rule for rule, found in baselines.items() if found.choices is None]
    # other plans of a budget's question are compared at the speed that it buys
    floor = question.limits.floor or (
        plan.estimate.samples_per_second * BELOW if question.objective == "seconds" else 0.0
    )
    nearly, needed, undecided = runners_up(question.at(floor), choices)
    points = tuple(frontier(problem, problem.floor or plan.estimate.samples_per_second))
    result = PlanningResult(
        plan=plan,
        memory=memory_of(question.table, choices),
        alternatives=tuple(alternatives),
        runners_up=tuple(nearly),
        needed_pools=tuple(needed),
        undecided_pools=tuple(undecided),
        frontier=points,
        asked=asked,
        own_plan=own_plan,
        learning_curve=tuple(CurvePoint(seconds=s, placements=n, money=m) for s, n, m in own.curve),
        floor=problem.floor,
        max_money=None if math.isinf(question.limits.max_money) else question.limits.max_money,
        limits=tuple(str(limit) for limit in question.limits.speed),
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
    return result.model_copy(update={"outcome": tuple(outcome_lines(result))})


def certified(
    question: Question, choices: tuple[Choice, ...], name: str, optimum: Solution
) -> Plan:
    """A scheduler's plan with its distance from the optimum, in money or (a budget) in speed."""
    plan = to_plan(question.table, choices, name)
    if not math.isfinite(optimum.bound) or optimum.bound <= 0:
        return plan
    gap = max(0.0, question.cost(choices) / optimum.bound - 1)
    by_money = question.objective == "money"
    fastest = question.problem.batch_size / optimum.bound
    return plan.model_copy(
        update={
            "optimum_money": optimum.bound if by_money else None,
            "optimum_samples_per_second": None if by_money else fastest,
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
