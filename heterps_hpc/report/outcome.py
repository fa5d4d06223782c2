"""The report in sentences: what was chosen, over what, for how much, and how near it came."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from heterps_hpc import format as fmt
from heterps_hpc.events import PlannedAgain, parse
from heterps_hpc.layout import Plan
from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.report.phases import is_wait, rank_times
from heterps_hpc.report.spending import Spending
from heterps_hpc.spending import attempts

NO_PLAN = "no plan that meets the floor"


@dataclass(frozen=True)
class SchedulerRow:
    """One row of the table of alternatives."""

    scheduler: str
    is_chosen: bool
    shape: str  # or why it found no plan
    money: float | None
    samples_per_second: float | None
    meets_floor: bool
    gap: float | None


def shape(plan: Plan) -> str:
    """A plan in a word: cpu×2 → gpu×1."""
    return " → ".join(f"{stage.pool}×{stage.num_ranks}" for stage in plan.stages)


def choices(run: RecordedRun) -> list[SchedulerRow]:
    """The chosen plan and every alternative, cheapest first; those without a plan last."""
    chosen = run.layout.plan if run.layout else None
    planning = run.planning
    floor = planning.floor if planning else 0.0
    plans = [] if chosen is None else [chosen]
    plans += [
        plan
        for plan in (planning.alternatives if planning else ())
        if not chosen or plan.scheduler != chosen.scheduler
    ]
    rows = [
        SchedulerRow(
            plan.scheduler,
            plan is chosen,
            shape(plan),
            plan.estimate.money,
            plan.estimate.samples_per_second,
            plan.estimate.samples_per_second >= floor * (1 - 1e-6),
            plan.gap,
        )
        for plan in plans
    ]
    rows.sort(key=lambda row: (not row.meets_floor, row.money, not row.is_chosen))
    reasons = planning.why_no_plan if planning else {}
    return rows + [
        SchedulerRow(name, False, reasons.get(name, NO_PLAN), None, None, False, None)
        for name in (planning.without_plan if planning else ())
    ]


def estimated_pools(run: RecordedRun) -> set[str]:
    """Pools known by a data sheet only."""
    names = set(run.profile.estimated_pools) if run.profile else set()
    names |= set(run.planning.estimated_pools) if run.planning else set()
    if run.cluster:
        names |= {pool.name for pool in run.cluster.pools if pool.data_sheet}
    return names


def gap_text(plan: Plan) -> str:
    """How near the optimum is, with the proof's strength."""
    if plan.gap is None:
        return "not certified"
    if plan.gap_is_bound:
        return f"at most {fmt.gap_at_most(plan.gap)}"
    return fmt.gap(plan.gap)


def sentences(run: RecordedRun, spent: Spending | None) -> list[str]:
    """One idea each; nothing is claimed that the files do not show."""
    plan = run.layout.plan if run.layout else None
    lines = []
    if plan is not None:
        lines.append(_decision(run, plan))
        lines += run.planning.outcome[1:] if run.planning else ()
        others = _others(run, plan)
        if others:
            lines.append(others)
    elif run.layout is not None:
        lines.append(f"The layout of {fmt.plural(run.layout.num_ranks, 'rank')} has no plan.")
    rest = (_prediction(run, plan), _bill(plan, spent), _time(run), _starts(run), _replans(run))
    return lines + [line for line in rest if line]


def _decision(run: RecordedRun, plan: Plan) -> str:
    where = []
    estimated = estimated_pools(run)
    for stage in plan.stages:
        mark = " (estimated)" if stage.pool in estimated else ""
        layers = fmt.plural(len(stage.layers), "layer")
        where.append(f"{layers} on {fmt.plural(stage.num_ranks, 'rank')} of {stage.pool}{mark}")
    text = f"{plan.scheduler} put {', then '.join(where)}: {fmt.money(plan.estimate.money)}"
    if plan.gap is not None and plan.optimum_samples_per_second is not None:
        fastest = plan.optimum_samples_per_second
        if plan.gap_is_bound:
            return (
                f"{text}; no plan within the budget exceeds {fmt.rate_at_most(fastest)} samples/s."
            )
        if plan.is_certified:
            return f"{text}; no plan within the budget is faster."
        return f"{text}; the optimum within the budget is {fmt.rate(fastest)} samples/s."
    if plan.gap is None or plan.optimum_money is None:
        return f"{text}; the optimum was not computed."
    if plan.gap_is_bound:
        bound = fmt.money_at_least(plan.optimum_money)
        return f"{text}; no plan can cost less than {bound}, so the gap is {gap_text(plan)}."
    if plan.is_certified:
        return f"{text}, which is the certified optimum."
    return f"{text}; the optimum is {fmt.money(plan.optimum_money)}, {gap_text(plan)} away."


def _others(run: RecordedRun, plan: Plan) -> str:
    rows = [row for row in choices(run) if not row.is_chosen]
    able = [row for row in rows if row.money is not None and row.meets_floor]
    if not rows:
        return ""
    more_expensive = [row for row in able if (row.money or 0) > plan.estimate.money * 1.0005]
    text = f"It was compared with {fmt.plural(len(rows), 'other scheduler')}"
    text += f": {len(able) - len(more_expensive) or 'none'} found as cheap a plan"
    if more_expensive:
        nearest, last = more_expensive[0], more_expensive[-1]
        assert nearest.money is not None
        assert last.money is not None
        low = fmt.more(nearest.money / plan.estimate.money - 1)
        high = fmt.more(last.money / plan.estimate.money - 1)
        span = f"{nearest.scheduler} {low}"
        text += f", {len(more_expensive)} a more expensive one ({span}"
        text += f" … {last.scheduler} {high})" if len(more_expensive) > 1 else ")"
    unable = [row for row in rows if row not in able]
    reasons = Counter(row.shape if row.money is None else NO_PLAN for row in unable)
    for reason, count in reasons.items():
        text += f", {count} {'found' if reason == NO_PLAN else 'had'} {reason}"
    return text + "."


def prediction_error(run: RecordedRun) -> float | None:
    """(measured − predicted) / predicted throughput."""
    plan = run.layout.plan if run.layout else None
    if plan is None or run.summary is None or not run.summary.samples_per_second:
        return None
    predicted = plan.estimate.samples_per_second
    return run.summary.samples_per_second / predicted - 1 if predicted else None


def _prediction(run: RecordedRun, plan: Plan | None) -> str:
    if run.summary is None or not run.summary.samples_per_second:
        return ""
    measured = fmt.rate(run.summary.samples_per_second)
    error = prediction_error(run)
    if plan is None or error is None:
        return f"It trained {measured} samples/s."
    predicted = fmt.rate(plan.estimate.samples_per_second)
    return f"Predicted {predicted} samples/s, measured {measured}: {fmt.signed_percent(error)}."


def _bill(plan: Plan | None, spent: Spending | None) -> str:
    if spent is None:
        return ""
    trained = fmt.money(spent.money - sum(spent.besides.values()))
    text = f"It cost {trained} for {fmt.seconds(spent.seconds)} of nodes, from start to end"
    if plan is not None:
        text += f"; training alone was predicted to cost {fmt.money(plan.estimate.money)}"
    parts = [f"{fmt.money(money)} for {what}" for what, money in spent.besides.items()]
    if parts:
        text += f". With {' and '.join(parts)} it was {fmt.money(spent.money)} in all"
    return text + "."


def _time(run: RecordedRun) -> str:
    bars = rank_times(run)
    if not bars:
        return ""
    bar = max(bars, key=lambda bar: bar.busy)
    work = {phase: value for phase, value in bar.seconds.items() if not is_wait(phase)}
    if not work:
        return ""
    longest = sorted(work, key=lambda phase: -work[phase])[:2]
    shares = " and ".join(f"{fmt.percent(work[p] / bar.total, 0)} {p}" for p in longest)
    return (
        f"The busiest rank ({bar.rank}, {bar.role or 'stage ' + str(bar.stage)}) worked "
        f"{fmt.percent(bar.busy, 0)} of the time: {shares}."
    )


def _starts(run: RecordedRun) -> str:
    starts = attempts(run.events)
    if len(starts) < 2:
        return ""
    lost = sum(attempt.seconds for attempt in starts[:-1])
    return (
        f"It was started {len(starts)} times; the starts before the last held nodes for "
        f"{fmt.seconds(lost)}."
    )


def _replans(run: RecordedRun) -> str:
    """Why it continued on another layout; predictions are then of the rest of the job."""
    for line in reversed(run.events):
        again = parse(line)
        if isinstance(again, PlannedAgain):
            ranks = " and ".join(f"{count} of {pool}" for pool, count in again.ranks.items())
            where = f" on {ranks}" if ranks else ""
            if again.saving is None:
                return f"Nodes were gone, so that the rest was planned again{where}."
            saving = fmt.signed_percent(-again.saving)
            return f"By its own times the rest was planned again{where}: {saving} money."
    return ""
