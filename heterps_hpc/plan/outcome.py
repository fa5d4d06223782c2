"""The outcome of planning in a few sentences: what it costs, what giving way would save, and what
one kind of pool alone would cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from heterps_hpc import format as fmt
from heterps_hpc.layout import Plan
from heterps_hpc.planning_result import PlanningResult

SLOWEST = 0.4  # of the speed that was asked for: nobody gives way further
WORTH = 1.2  # times cheaper: less is not worth a sentence
SAME = 1.01
ONE_KIND = ("cpu-only", "gpu-only")


def outcome_lines(result: PlanningResult) -> list[str]:
    """What a reader needs first."""
    return [_decision(result), *_giving_way(result), *_one_kind(result)]


def _decision(result: PlanningResult) -> str:
    plan, estimate = result.plan, result.plan.estimate
    rate = f"{fmt.rate(estimate.samples_per_second)} samples/s"
    money, took = fmt.money(estimate.money), fmt.seconds(estimate.hours * 3600)
    if plan.optimum_samples_per_second is not None and result.max_money is not None:
        budget = fmt.money(result.max_money)
        text = f"{rate} within {budget}: the job takes {took} and costs {money}"
        return text + _proof(plan, "no plan within it is faster")
    return f"{money} at {rate}: the job takes {took}" + _proof(plan, "no plan is cheaper")


def optimum_text(plan: Plan) -> str:
    """The certified optimum, in money or (of a budget) in speed; a bound is rounded to the side on
    which it stays true. Empty if there is none."""
    money, speed = plan.optimum_money, plan.optimum_samples_per_second
    if money is not None:
        return fmt.money_at_least(money) if plan.gap_is_bound else fmt.money(money)
    if speed is not None:
        return f"{fmt.rate_at_most(speed) if plan.gap_is_bound else fmt.rate(speed)} samples/s"
    return ""


def gap_text(plan: Plan) -> str:
    """How far the optimum is, or is at most; nothing if that is not known."""
    if plan.gap is None:
        return ""
    return f"≤ {fmt.gap_at_most(plan.gap)}" if plan.gap_is_bound else fmt.gap(plan.gap)


def _proof(plan: Plan, optimal: str) -> str:
    """What the exact solver has proven of a plan."""
    if plan.gap is None:
        return ", not proven optimal."
    if plan.gap_is_bound:
        return f"; nothing better than {optimum_text(plan)} is possible (proven)."
    if plan.is_certified:
        return f"; {optimal} (proven)."
    return f"; the proven optimum is {optimum_text(plan)}."


def _giving_way(result: PlanningResult) -> Iterator[str]:
    """`With a floor 20 % lower (37,696 samples/s) it would cost $0.000131 instead of $0.00576.`"""
    plan = easier_plan(result)
    if plan is None:
        return
    asked = result.floor or result.plan.estimate.samples_per_second
    less = 1 - plan.estimate.samples_per_second / asked
    percent = fmt.percent(less, 0 if less >= 0.1 else 1)
    what = f"With a floor {percent} lower" if result.floor else f"Accepting {percent} less speed"
    unproven = " (not proven best)" if plan.gap_is_bound else ""
    yield (
        f"{what} ({fmt.rate_at_least(plan.estimate.samples_per_second)} samples/s) it would cost "
        f"{fmt.money(plan.estimate.money)} instead of "
        f"{fmt.money(result.plan.estimate.money)}{unproven}."
    )


def easier_plan(result: PlanningResult) -> Plan | None:
    """The plan of the frontier below the goal's speed that saves most for what it gives up."""
    chosen = result.plan.estimate
    asked = result.floor or chosen.samples_per_second
    best, most = None, 1.0  # as much money as speed is no bargain
    for point in result.frontier:
        speed = point.estimate.samples_per_second / asked
        saves = chosen.money / point.estimate.money
        if not SLOWEST <= speed < 1 / SAME or saves < WORTH:
            continue
        bargain = math.log(saves) / -math.log(speed)
        if bargain > most:
            best, most = point, bargain
    return best


def _one_kind(result: PlanningResult) -> Iterator[str]:
    """What everything on one kind of pool would cost, where the plan uses several."""
    plan = result.plan
    if len({stage.pool for stage in plan.stages}) < 2:
        return
    alone = {p.scheduler: p for p in result.alternatives if p.scheduler in ONE_KIND}
    parts = [f"{name} would {worse}" for name in alone if (worse := _worse(alone[name], plan))]
    reasons: dict[str, list[str]] = {}
    for name in ONE_KIND:
        if name in result.without_plan:
            why = result.why_no_plan.get(name, "no plan that meets the goal")
            reasons.setdefault(why, []).append(name)
    parts += [
        f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'} {why}"
        for why, names in reasons.items()
    ]
    if parts:
        pools = " and ".join(dict.fromkeys(stage.pool for stage in plan.stages))
        yield f"It uses {pools}: {', '.join(parts)}."


def _worse(other: Plan, plan: Plan) -> str | None:
    """How much worse another plan is, in what was minimised."""
    if plan.optimum_samples_per_second is None:
        ratio = other.estimate.money / plan.estimate.money
        more, price = f"{fmt.percent(ratio - 1, 0)} more", fmt.money(other.estimate.money)
        more = f"{fmt.factor(ratio)} times as much" if ratio >= 2 else more
        return f"cost {more} ({price})" if ratio > SAME else None
    ratio = plan.estimate.samples_per_second / other.estimate.samples_per_second
    slower = f"{fmt.factor(ratio)} times" if ratio >= 2 else fmt.percent(1 - 1 / ratio, 0)
    return f"be {slower} slower" if ratio > SAME else None
