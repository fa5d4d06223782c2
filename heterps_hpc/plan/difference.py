"""What a change of some keys would do to a plan, as `heterps plan --set` prints it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from heterps_hpc import format as fmt
from heterps_hpc.layout import Plan
from heterps_hpc.plan.terminal import plain_table, stages_line
from heterps_hpc.planning_result import PlanningResult


def show_difference(
    before: PlanningResult | None,
    refusal: str,
    after: PlanningResult,
    settings: Sequence[str],
    console: Console | None = None,
) -> None:
    """Both plans below each other, and what changes; `refusal` is why there is none as it is."""
    console = console or Console()
    console.print(f"what if {' '.join(settings)}", highlight=False, markup=False, soft_wrap=True)
    table = plain_table(None, ("money", "samples/s", "time"), ("", "stages"))
    if before is None:
        table.add_row("–", "–", "–", "as it is", refusal)
    else:
        table.add_row(*_figures(before.plan), "as it is", stages_line(before.plan))
    table.add_row(*_figures(after.plan), "with it", stages_line(after.plan))
    console.print(table)
    console.print(changes(before, after), highlight=False)
    console.print("Nothing was written.", highlight=False)


def changes(before: PlanningResult | None, after: PlanningResult) -> str:
    """One line: `money −12.0 %, samples/s +3.1 %, time −3.0 %`."""
    if before is None:
        return "There is a plan with it, and none as it is."
    old, new = before.plan, after.plan
    figures = (
        ("money", old.estimate.money, new.estimate.money),
        ("samples/s", old.estimate.samples_per_second, new.estimate.samples_per_second),
        ("time", old.estimate.hours, new.estimate.hours),
    )
    if old.stages == new.stages and all(abs(now / then - 1) < 1e-9 for _, then, now in figures):
        return "The plan does not change."
    return ", ".join(f"{name} {fmt.more(now / then - 1)}" for name, then, now in figures) + "."


def _figures(plan: Plan) -> tuple[str, str, str]:
    estimate = plan.estimate
    rate, hours = fmt.rate(estimate.samples_per_second), estimate.hours
    return fmt.money(estimate.money), rate, fmt.seconds(hours * 3600)
