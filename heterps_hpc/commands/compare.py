"""`heterps compare`: runs next to each other, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.errors import UserError
from heterps_hpc.report.comparison import Comparison, Row, compare
from heterps_hpc.report.inputs import read_run
from heterps_hpc.rundir import RunDir

_NAME_WIDTH = 24
_RUN_WIDTH = 18


def compare_runs(
    run_dirs: Sequence[Path], page: Path | None, console: Console | None = None
) -> None:
    """Print what the runs reached, what they cost and what differs; write the page if asked."""
    if len(run_dirs) < 2:
        raise UserError(f"give two or more run directories to compare, got {len(run_dirs)}")
    console = console or Console()
    runs = [read_run(RunDir(path)) for path in run_dirs]
    found = compare(runs)
    # as many runs side by side as can be read; the others follow below
    side_by_side = max(2, (console.width - _NAME_WIDTH) // _RUN_WIDTH)
    for first in range(0, len(runs), side_by_side):
        shown = range(first, min(first + side_by_side, len(runs)))
        console.print(_table("results", found, found.results, shown))
        if found.differences:
            console.print(_table("what differs in their jobs", found, found.differences, shown))
    if not found.differences:
        console.print("their jobs and clusters are the same", highlight=False)
    if page is not None:
        from heterps_hpc.report.comparison_page import render_comparison

        write_atomically(page, render_comparison(runs, found))
        console.print(Text.assemble("page: ", (str(page), "bold")), soft_wrap=True)


def _table(title: str, found: Comparison, rows: Sequence[Row], shown: range) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold", max_width=_NAME_WIDTH + 6)
    for index in shown:
        table.add_column(Text(found.runs[index], overflow="fold"), justify="right", overflow="fold")
    for row in rows:
        cells = [
            Text(row.values[index], style="bold green" if row.best == index else "")
            for index in shown
        ]
        table.add_row(Text(row.name), *cells)
    return table
