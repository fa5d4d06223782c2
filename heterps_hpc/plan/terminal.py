"""A plan as people read it on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from heterps_hpc import format as fmt
from heterps_hpc.layout import Layout, Plan
from heterps_hpc.plan.explain import next_floor
from heterps_hpc.planning_result import MemoryUse, PlanningResult


def show(result: PlanningResult, layout: Layout, console: Console | None = None) -> None:
    """Print the stages, the money, the baselines and the frontier."""
    console = console or Console()
    console.print(stage_table(result.plan, layout, result.memory))
    for line in summary_lines(result):
        console.print(line, highlight=False)
    if result.runners_up:
        console.print(runner_table(result))
    console.print(comparison_table(result))


def stage_table(plan: Plan, layout: Layout, memory: Sequence[MemoryUse]) -> Table:
    """One line per stage: where, how many ranks, seconds per batch, memory, which one binds."""
    table = Table(title=f"plan by {plan.scheduler}", title_justify="left")
    for name, justify in (
        ("stage", "right"),
        ("layers", "left"),
        ("pool", "left"),
        ("ranks", "right"),
        ("role", "left"),
        ("computing s", "right"),
        ("moving s", "right"),
        ("stage s", "right"),
        ("GB per rank", "right"),
        ("", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for index, stage in enumerate(plan.stages):
        times = plan.estimate.stages[index]
        first, last = stage.layers[0], stage.layers[-1]
        table.add_row(
            str(index),
            first if first == last else f"{first} … {last}",
            stage.pool,
            str(stage.num_ranks),
            layout.ranks[layout.stage_ranks(index)[0]].role,
            f"{times.compute_seconds:.4g}",
            f"{times.move_seconds:.4g}",
            f"{times.seconds:.4g}",
            gigabytes(memory[index]),
            "◀ binds" if index == plan.estimate.binding_stage else "",
        )
    return table


def gigabytes(use: MemoryUse) -> str:
    """Host memory of a rank and its limit; the part for snapshots is named, a device is added."""
    text = f"{use.host / 1e9:.3g} of {use.limit / 1e9:.3g}"
    if use.snapshot > 0:
        text += f" (snapshot {use.snapshot / 1e9:.3g})"
    if use.dense_on_device:
        room = "?" if use.device_limit is None else f"{use.device_limit / 1e9:.3g}"
        text += f", device {use.dense / 1e9:.3g} of {room}"
    return text


def money_line(plan: Plan) -> str:
    """`money $12.40 · optimum $12.40 · gap 0.0 %`."""
    parts = [f"money {fmt.money(plan.estimate.money)}"]
    if plan.optimum_money is not None and plan.gap is not None:
        word = "bound" if plan.gap_is_bound else "optimum"
        at_most = "≤ " if plan.gap_is_bound else ""
        parts += [f"{word} {fmt.money(plan.optimum_money)}", f"gap {at_most}{plan.gap:.1%}"]
    return " · ".join(parts).replace("%", " %")


def summary_lines(result: PlanningResult) -> list[str]:
    """The figures of the whole plan, in a few lines."""
    plan, estimate = result.plan, result.plan.estimate
    per_million = estimate.money_per_hour / 3600 / estimate.samples_per_second * 1e6
    per_epoch = f"{fmt.money(estimate.money / result.epochs)}/epoch · " if result.epochs else ""
    lines = [
        money_line(plan),
        *search_lines(result),
        f"{estimate.samples_per_second:,.0f} samples/s (floor {result.floor:,.0f}) · "
        f"{estimate.seconds_per_batch:.4g} s per batch · {estimate.hours:.3g} h",
        f"{fmt.money(estimate.money_per_hour)}/hour · {per_epoch}"
        f"{fmt.money(per_million)}/million samples",
    ]
    if result.best is not None and result.best_is_found:
        most = f"{result.best_at_most:,.0f}" if result.best_at_most else "not bounded"
        lines.append(
            f"bound: the floor is a fraction of {result.best:,.0f} samples/s, the fastest plan "
            f"found in time; what the pools can do at most is {most}"
        )
    lines += [f"extrapolated: {words}" for words in result.extrapolated]
    if estimate.from_data_sheet:
        names = ", ".join(result.estimated_pools)
        lines.append(f"estimated: pools {names} are described by data sheets, not measured")
    faster = next_floor(plan, list(result.frontier))
    if faster is not None:
        lines.append(
            f"next floor: {faster.estimate.samples_per_second:,.0f} samples/s would cost "
            f"{fmt.money(faster.estimate.money)}"
        )
    return lines


def search_lines(result: PlanningResult) -> list[str]:
    """What the asked scheduler found by itself, and whose plan was taken if not its own."""
    plan, own, asked = result.plan, result.own_plan, result.asked
    if asked is None:
        return []
    looked = fmt.plural(result.num_placements, "placement")
    effort = f"{looked} in {fmt.seconds(result.scheduler_seconds)}"
    if own is None:
        whose = f"this plan is {plan.scheduler}'s"
        return [f"search: {asked} found no plan by itself ({effort}); {whose}"]
    line = f"search: {asked} found {fmt.money(own.estimate.money)} by itself ({effort})"
    if plan.scheduler == asked:
        return [line]
    saving = 100 * (1 - plan.estimate.money / own.estimate.money)
    how = ", which started from the cheapest of the others" if plan.scheduler == "exact" else ""
    return [f"{line}; this plan is {plan.scheduler}'s{how}, cheaper by {saving:.2g} %"]


def runner_table(result: PlanningResult) -> Table:
    """The next best plans, what they cost, and why they lose."""
    table = Table(title="runner-up plans", title_justify="left")
    for name in ("plan", "money", "more", "stages", "why it loses"):
        table.add_column(name, justify="right" if name in ("money", "more") else "left")
    money = result.plan.estimate.money
    for runner in result.runners_up:
        more = f"{runner.plan.estimate.money / money - 1:+.1%}".replace("%", " %")
        unproven = " (not proven best)" if runner.plan.gap_is_bound else ""
        table.add_row(
            runner.what + unproven,
            fmt.money(runner.plan.estimate.money),
            more,
            stages_line(runner.plan),
            runner.loses,
        )
    return table


def stages_line(plan: Plan) -> str:
    """`cpu×8 (1) → gpu×2 (15)`: pool, ranks, and in brackets the number of layers."""
    return " → ".join(
        f"{stage.pool}×{stage.num_ranks} ({len(stage.layers)})" for stage in plan.stages
    )


def comparison_table(result: PlanningResult) -> Table:
    """Baselines and frontier, one plan per line."""
    table = Table(title="other plans", title_justify="left")
    for name in ("plan", "samples/s", "$/hour", "money", "gap", "stages"):
        table.add_column(name, justify="left" if name in ("plan", "stages") else "right")
    rows = [(plan.scheduler, plan) for plan in result.alternatives]
    rows += [("frontier", plan) for plan in result.frontier]
    for name, plan in rows:
        estimate = plan.estimate
        table.add_row(
            name,
            f"{estimate.samples_per_second:,.0f}",
            f"{estimate.money_per_hour:.4g}",
            fmt.money(estimate.money),
            "" if plan.gap is None else f"{plan.gap:.1%}",
            stages_line(plan),
        )
    return table
