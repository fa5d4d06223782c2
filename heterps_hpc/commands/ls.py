"""`heterps ls`: every run of a folder in one line each: which was best, and what did they cost?"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_hpc import events
from heterps_hpc import format as fmt
from heterps_hpc.errors import UserError
from heterps_hpc.events import Ended, Submitted
from heterps_hpc.fit_table import fit_table
from heterps_hpc.launch.run_progress import read_progress
from heterps_hpc.launch.status import RunPhase, derive_state, read_status, short_state
from heterps_hpc.rundir import RunDir
from heterps_hpc.spending import spent_besides


@dataclass(frozen=True)
class RunLine:
    """One run; what is not known is None."""

    name: str  # of its directory
    state: str
    auc: float | None
    loss: float | None
    samples_per_second: float | None
    money: float | None
    began: float  # seconds since the epoch


def ls(
    folder: Path | None,
    *,
    days: float | None = None,
    as_json: bool = False,
    console: Console | None = None,
) -> None:
    """Print the runs of a folder, the newest last, and what they cost together."""
    console = console or Console()
    where = folder if folder is not None else Path("runs" if Path("runs").is_dir() else ".")
    lines = sorted((_line(run) for run in find_runs(where)), key=lambda line: line.began)
    if days is not None:
        lines = [line for line in lines if line.began >= time.time() - days * 86400]
    if as_json:
        console.print_json(json.dumps([dataclasses.asdict(line) for line in lines]))
    elif not lines:
        recent = "" if days is None else f" of the last {days:g} days"
        raise UserError(f"{where}: no run{recent} in it; `heterps run JOB` makes runs/NAME")
    else:
        console.print(_table(lines, console.width))
        console.print(_totals(lines), highlight=False)


def find_runs(folder: Path) -> list[RunDir]:
    """The run directories in a folder or in its `runs`; the folder itself, if it is one."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such directory; give a folder that holds runs, such as `runs`"
        )
    own = RunDir(folder)
    if own.job.is_file():
        return [own]
    places = [*folder.iterdir(), *(folder / "runs").glob("*")]
    return [run for path in places if (run := RunDir(path)).job.is_file()]


def _line(run: RunDir) -> RunLine:
    """From the files; Slurm is asked only about jobs that have not recorded their end."""
    history = events.read(run)
    end = history.since(Submitted).last(Ended)
    asks = history.job_id is not None and (end is None or end.again)
    began = history.events[0].time if history.events else run.job.stat().st_mtime
    try:
        state = read_status(run.path).state if asks else derive_state(run, history)
    except UserError:  # one damaged run must not hide the others
        return RunLine(run.path.name, "unreadable", None, None, None, None, began)
    progress = read_progress(run) if history.was_launched else None
    summary = _summary(run) if state.phase == RunPhase.ENDED else {}
    return RunLine(
        name=run.path.name,
        state=short_state(state, progress),
        auc=None if progress is None else progress.auc,
        loss=None if progress is None else progress.loss,
        samples_per_second=summary.get("samples_per_second")
        or (None if progress is None else progress.samples_per_second),
        money=(sum(spent_besides(run).values()) or None) if progress is None else progress.money,
        began=began,
    )


def _summary(run: RunDir) -> dict[str, Any]:
    try:
        found = json.loads(run.summary.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _table(lines: Sequence[RunLine], width: int) -> Table:
    """Names are folded where there is little space; numbers never are: some are left out."""
    numbers = {
        "AUC": ["–" if line.auc is None else f"{line.auc:.4f}" for line in lines],
        "loss": ["–" if line.loss is None else f"{line.loss:.4f}" for line in lines],
        "samples/s": [
            "–" if line.samples_per_second is None else fmt.rate(line.samples_per_second)
            for line in lines
        ],
        "money": ["–" if line.money is None else fmt.money(line.money) for line in lines],
        "began": [fmt.day_and_time(line.began) for line in lines],
    }
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state", overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    best = max((line.auc for line in lines if line.auc is not None), default=None)
    for line, *cells in zip(lines, *numbers.values(), strict=True):
        style = "bold" if line.auc is not None and line.auc == best else ""
        table.add_row(*map(Text, (line.name, line.state, *cells)), style=style)
    return fit_table(table, width, ("loss", "began", "samples/s"))


def _totals(lines: Sequence[RunLine]) -> str:
    text = fmt.plural(len(lines), "run")
    best = max((line for line in lines if line.auc is not None), key=_auc, default=None)
    if best is not None and len(lines) > 1:
        text += f" · best AUC {best.auc:.4f} ({best.name})"
    return f"{text} · {fmt.money(sum(line.money or 0.0 for line in lines))} in all"


def _auc(line: RunLine) -> float:
    return line.auc or 0.0
