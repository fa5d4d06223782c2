"""Reports: why this plan, what it cost, how near the prediction was, where the time went.

run directory ─ inputs ─▶ Run ─┬─ outcome, spending, phases, traffic ─┬─ page ─▶ report.html
                               └─ picture, timeline, charts ──────────┴─ terminal
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heterps_hpc.rundir import RunDir
from heterps_hpc.validation import write_atomically

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["write_report"]


def write_report(where: RunDir, console: Console | None = None) -> Path:
    """Write report.html into a run directory; print the short form where a console is given."""
    from heterps_hpc.report import page, terminal
    from heterps_hpc.report.inputs import read_run

    run = read_run(where)
    write_atomically(where.report, page.render(run))
    if console is not None:
        terminal.show(run, where.report, console)
    return where.report
