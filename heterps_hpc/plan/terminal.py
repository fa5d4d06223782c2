"""A plan as people read it on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from heterps_hpc import format as fmt
from heterps_hpc.fit_table import fit_table
from heterps_hpc.layout import Layout, Plan
from heterps_hpc.plan.explain import next_floor
from heterps_hpc.plan.outcome import gap_text, optimum_text
from heterps_hpc.planning_result import MemoryUse, PlanningResult, together

CURVE_POINTS = 3  # of a learning curve, after its first


def show(result: PlanningResult, layout: Layout, console: Console | None = None) -> None:
    """Print the outcome, the stages, the money, the baselines and the frontier."""
    console = console or Console()
    for line in result.outcome:
        console.print(line, highlight=False)
    console.print()
    stages = stage_table(result.plan, layout, result.memory)
    console.print(fit_table(stages, console.width, ("move", "compute")))
    for line in summary_lines(result):
        console.print(line, highlight=False)
    if result.trials:
        console.print(fit_table(trial_table(result), console.width, ("predicted $",)))
    if result.runners_up or result.needed_pools or result.undecided_pools:
        console.print(fit_table(runner_table(result), console.width, ("more", "stages")))
    console.print(fit_table(comparison_table(result), console.width, ("$/hour", "gap")))


def stage_table(plan: Plan, layout: Layout, memory: Sequence[MemoryUse]) -> Table:
    """Where each stage runs, its seconds per batch, and under its layers its role and memory."""
    table = plain_table(
        f"plan by {plan.scheduler}", ("stage", "ranks", *_SECONDS), ("layers", "pool")
    )
    for index, stage in enumerate(plan.stages):
        times = plan.estimate.stages[index]
        first, last = stage.layers[0], stage.layers[-1]
        role = layout.ranks[layout.stage_ranks(index)[0]].role
        slowest = " · slowest" if index == plan.estimate.binding_stage else ""
        table.add_row(
            str(index),
            str(stage.num_ranks),
            fmt.seconds(times.compute_seconds),
            fmt.seconds(times.move_seconds),
            fmt.seconds(times.seconds),
            (first if first == last else f"{first} … {last}")
            + f"\n{role} · {memory_line(memory[index])}{slowest}",
            stage.pool,
        )
    return table


_SECONDS = ("compute", "move", "per batch")


def plain_table(title: str | None, numbers: Sequence[str], texts: Sequence[str]) -> Table:
    """A table whose numbers are never cut: on a narrow terminal its texts are folded."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for name in texts:
        table.add_column(name, overflow="fold")
    return table


def memory_line(use: MemoryUse) -> str:
    """Host memory of a rank and its limit; the part for snapshots is named, a device is added."""
    text = f"{fmt.size(use.host)} of {fmt.size(use.limit)} per rank"
    if use.snapshot > 0:
        text += f" (snapshot {fmt.size(use.snapshot)})"
    if use.dense_on_device:
        limit = "?" if use.device_limit is None else fmt.size(use.device_limit)
        text += f", device {fmt.size(use.dense)} of {limit}"
    return text


def money_line(plan: Plan) -> str:
    """`money $12.40 · optimum $12.40 · gap 0.0 %`; within a budget the optimum is a speed."""
    parts = [f"money {fmt.money(plan.estimate.money)}"]
    optimum = optimum_text(plan)
    if optimum and plan.gap is not None:
        parts += [
            f"{'bound' if plan.gap_is_bound else 'optimum'} {optimum}",
            f"gap {gap_text(plan)}",
        ]
    return " · ".join(parts)


def summary_lines(result: PlanningResult) -> list[str]:
    """The figures of the whole plan, in a few lines."""
    plan, estimate = result.plan, result.plan.estimate
    per_million = estimate.money_per_hour / 3600 / estimate.samples_per_second * 1e6
    per_epoch = f"{fmt.money(estimate.money / result.epochs)}/epoch · " if result.epochs else ""
    lines = [
        money_line(plan),
        *search_lines(result),
        *learning_lines(result),
        f"{fmt.rate(estimate.samples_per_second)} samples/s{_goal(result)} · "
        f"{fmt.seconds(estimate.seconds_per_batch)} per batch · "
        f"{fmt.seconds(estimate.hours * 3600)}",
        f"{fmt.money(estimate.money_per_hour)}/hour · {per_epoch}"
        f"{fmt.money(per_million)}/million samples",
    ]
    if result.best is not None and result.best_is_found:
        most = fmt.rate_at_most(result.best_at_most) if result.best_at_most else "not bounded"
        lines.append(
            f"bound: the floor is a fraction of {result.best:,.0f} samples/s, the fastest plan "
            f"found in time; what the pools can do at most is {most}"
        )
    lines += [f"extrapolated: {text}" for text in result.extrapolated]
    lines += [f"unusual: {text}" for text in result.remarks]
    if estimate.from_data_sheet:
        names = ", ".join(result.estimated_pools)
        lines.append(f"estimated: pools {names} are described by data sheets, not measured")
    faster = next_floor(plan, list(result.frontier))
    if faster is not None:
        floor = fmt.rate_at_least(faster.estimate.samples_per_second)
        cost = fmt.money(faster.estimate.money)
        lines.append(f"next floor: {floor} samples/s would cost {cost}")
    return lines


def _goal(result: PlanningResult) -> str:
    """` (floor 50,000 from max_hours 2, budget $10.00)`."""
    parts = []
    if result.floor > 0:
        others = [limit for limit in result.limits if "samples_per_second" not in limit]
        why = f" from {' and '.join(others)}" if others else ""
        parts.append(f"floor {fmt.rate(result.floor)}{why}")
    if result.max_money is not None:
        parts.append(f"budget {fmt.money(result.max_money)}")
    return f" ({', '.join(parts)})" if parts else ""


def search_lines(result: PlanningResult) -> list[str]:
    """What the asked scheduler found by itself, and whose plan was taken if not its own."""
    plan, own, asked = result.plan, result.own_plan, result.asked
    if asked is None:
        return []
    looked = fmt.plural(result.num_placements, "placement")
    effort = f"{looked} in {fmt.seconds(result.scheduler_seconds)}"
    if own is None:
        whose = f"this plan is {plan.scheduler}'s"
        if plan.scheduler == together(asked):
            whose = f"this plan is of both: {asked} continued from exact's, which is not proven"
        return [f"search: {asked} found no plan by itself ({effort}); {whose}"]
    by_speed = own.optimum_samples_per_second is not None
    rate = f"{fmt.rate(own.estimate.samples_per_second)} samples/s"
    what = rate if by_speed else fmt.money(own.estimate.money)
    line = f"search: {asked} found {what} by itself ({effort})"
    if plan.scheduler == asked:
        return [line]
    if any(trial.taken for trial in result.trials[1:]):
        return [f"{line}; this plan is another that was better when both were tried"]
    if by_speed:
        gain = 100 * (plan.estimate.samples_per_second / own.estimate.samples_per_second - 1)
        return [f"{line}; this plan is {plan.scheduler}'s, faster by {_difference(gain)}"]
    saving = 100 * (1 - plan.estimate.money / own.estimate.money)
    whose = f"{plan.scheduler}'s"
    if plan.scheduler == "exact":
        whose += ", which started from the cheapest of the others"
    elif plan.scheduler == together(asked):
        whose = f"of both: exact started from the cheapest, ran out of time, and {asked} continued"
    return [f"{line}; this plan is {whose}, cheaper by {_difference(saving)}"]


def learning_lines(result: PlanningResult) -> list[str]:
    """What the scheduler's best plan cost meanwhile: its learning curve in a few points."""
    points = result.learning_curve
    if len(points) < 2 or (result.max_money is not None and not result.floor):
        return []  # within a budget alone it searched at several floors, in turn
    places = sorted({round(i * (len(points) - 1) / CURVE_POINTS) for i in range(CURVE_POINTS + 1)})
    steps = [
        f"{fmt.money(points[place].money)} after {points[place].placements:,}" for place in places
    ]
    return [f"best plan while it searched: {', '.join(steps)} placements"]


def _difference(percent: float) -> str:
    """2.4 %, 0.0012 %, 99.7 %: a saving of nearly all is not all."""
    shown = min(percent, 99.9) if percent < 100 else percent
    return f"{fmt.significant(shown, 2 if shown < 10 else 3)} %"


def trial_table(result: PlanningResult) -> Table:
    """Plans that really ran before one was taken: predicted, tried, and what that would cost."""
    numbers = ("predicted/s", "tried/s", "predicted $", "tried $")
    table = plain_table("tried, samples/s and money", numbers, ("plan", "stages"))
    for trial in result.trials:
        estimate, money = trial.plan.estimate, trial.money
        rate = trial.samples_per_second
        mark = " · taken" if trial.taken else ""
        floor = "" if rate is None or rate >= result.floor else " · below the floor"
        table.add_row(
            f"{estimate.samples_per_second:,.0f}",
            "failed" if rate is None else f"{rate:,.0f}",
            fmt.money(estimate.money),
            "–" if money is None else fmt.money(money),
            trial.what + mark + floor,
            stages_line(trial.plan),
        )
    spent = fmt.money(sum(trial.spent for trial in result.trials))
    table.caption = f"the trials cost {spent}"
    return table


def runner_table(result: PlanningResult) -> Table:
    """The next best plans, what they cost, and why they lose."""
    table = plain_table("runner-up plans", ("money", "more"), ("plan", "stages", "why it loses"))
    money = result.plan.estimate.money
    for runner in result.runners_up:
        unproven = " (not proven best)" if runner.plan.gap_is_bound else ""
        table.add_row(
            fmt.money(runner.plan.estimate.money),
            fmt.more(runner.plan.estimate.money / money - 1),
            runner.what + unproven,
            stages_line(runner.plan),
            runner.loses,
        )
    for pool in result.needed_pools:
        table.add_row("–", "–", f"best without {pool}", "", "there is no plan without it")
    for pool in result.undecided_pools:
        table.add_row("–", "–", f"best without {pool}", "", "none was found in time")
    return table


def stages_line(plan: Plan) -> str:
    """`cpu×8 (1) → gpu×2 (15)`: pool, ranks, and in brackets the number of layers."""
    return " → ".join(
        f"{stage.pool}×{stage.num_ranks} ({len(stage.layers)})" for stage in plan.stages
    )


def comparison_table(result: PlanningResult) -> Table:
    """Baselines and frontier, one plan per line; baselines that found none, too."""
    table = plain_table("other plans", ("samples/s", "$/hour", "money", "gap"), ("plan", "stages"))
    rows = [(plan.scheduler, plan) for plan in result.alternatives]
    for point in result.frontier:
        rows.append(("frontier (not proven)" if point.gap_is_bound else "frontier", point))
    for name, plan in rows:
        estimate = plan.estimate
        table.add_row(
            fmt.rate(estimate.samples_per_second),
            fmt.money(estimate.money_per_hour),
            fmt.money(estimate.money),
            "" if plan.gap is None else gap_text(plan),
            name,
            stages_line(plan),
        )
    for name in result.without_plan:
        reason = result.why_no_plan.get(name, "no plan that meets the goal")
        table.add_row("–", "–", "–", "–", name, reason)
    return table
