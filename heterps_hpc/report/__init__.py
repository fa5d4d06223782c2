"""Reports: why this plan, what it cost, how near the prediction was, where the time went.

run directory ─ inputs ─▶ Run ─┬─ outcome, spending, phases, traffic ─┬─ page ─▶ report.html
                               └─ picture, timeline, charts ──────────┴─ terminal
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.rundir import RunDir

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["write_report"]


def write_report(
    where: RunDir,
    console: Console | None = None,
    working: AbstractContextManager[object] | None = None,
) -> Path:
    """Write report.html into a run directory; print the short form where a console is given.

    `working` is entered while the page is made, which takes a few seconds.
    """
    from heterps_hpc.report.inputs import read_run

    run = read_run(where)
    with working or nullcontext():
        from heterps_hpc.report import page, terminal

        write_atomically(where.report, page.render(run))
    if console is not None:
        terminal.show(run, where.report, console)
    return where.report
