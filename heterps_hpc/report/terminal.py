"""The report in a terminal: the outcome, and one table."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from heterps_hpc import format as fmt
from heterps_hpc.fit_table import fit_table
from heterps_hpc.report import outcome, page, spending
from heterps_hpc.report.inputs import RecordedRun

_TONES = {"good": "green", "warn": "yellow", "bad": "red"}
_ROWS_SHOWN = 8


def show(run: RecordedRun, report: Path, console: Console) -> None:
    """Print the short form; texts of the run are shown as they are, never as markup."""
    status = page.status(run)
    title = Text.assemble(run.name, "  ", (status.text, _TONES[status.tone]))
    lines = outcome.sentences(run, spending.spending(run)) or ["Nothing is known yet."]
    parts: list[RenderableType] = [Text(line) for line in lines]
    console.print(Panel(Group(*parts), title=title, title_align="left", padding=(1, 2)))
    table = _choices(run)
    if table is not None:
        console.print(fit_table(table, console.width, ("samples/s", "gap")))
    for line in run.missing:
        console.print(Text(f"not in this report: {line}", style="dim"))
    console.print(Text.assemble("report: ", (str(report), "bold")), soft_wrap=True)


def _choices(run: RecordedRun) -> Table | None:
    rows = outcome.choices(run)
    if len(rows) < 2:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("scheduler", overflow="fold")
    table.add_column("plan", overflow="fold")
    for heading in ("money", "samples/s", "gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows[:_ROWS_SHOWN]:
        style = "bold" if row.is_chosen else ("dim" if not row.meets_floor else "")
        cells = (
            row.scheduler + (" ←" if row.is_chosen else ""),
            row.shape,
            "–" if row.money is None else fmt.money(row.money),
            "–" if row.samples_per_second is None else fmt.rate(row.samples_per_second),
            "–" if row.gap is None else fmt.gap(row.gap),
        )
        table.add_row(*(Text(cell) for cell in cells), style=style)
    if len(rows) > _ROWS_SHOWN:
        table.caption = f"{len(rows) - _ROWS_SHOWN} more in the report"
    return table
