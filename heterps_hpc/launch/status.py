"""Status: where a run stands, from its own files and from Slurm, without disturbing it."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from heterps_hpc import history
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.heartbeats import describe_all
from heterps_hpc.launch.failure import explain
from heterps_hpc.launch.progress import Metrics, last_metrics
from heterps_hpc.launch.slurm.job_state import ComponentState, state
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir

_WORDS = {
    ExitCode.DONE: "done",
    ExitCode.USER_ERROR: "ended by a mistake in the job",
    ExitCode.STOPPED: "stopped after a checkpoint",
    ExitCode.RANK_FAILED: "failed",
    ExitCode.STALLED: "stalled",
    ExitCode.NOT_SAVED: "trained to the end, but its last state is not saved",
}


@dataclass(frozen=True)
class Status:
    """Everything that `heterps status` tells."""

    run_dir: Path
    summary: str
    starts: int
    restarts: int
    job_id: int | None
    components: tuple[ComponentState, ...]
    metrics: Metrics | None
    checkpoints: tuple[int, ...]
    ranks: tuple[str, ...]
    reason: str | None


def read_status(run_dir: Path | str) -> Status:
    """Look at a run."""
    run = RunDir(run_dir)
    if not run.job.exists():
        raise UserError(f"{run.path}: not a run directory (it has no {run.job.name})")
    events = history.read(run)
    job_id = _job_id(events)
    now = state(job_id) if job_id is not None and shutil.which("scontrol") else None
    ended = _ended(events)
    components = () if now is None else now.components
    return Status(
        run_dir=run.path,
        summary=_summary(run, events, ended, components),
        starts=sum(event["event"] == "start" for event in events),
        restarts=history.restarts(events),
        job_id=job_id,
        components=components,
        metrics=last_metrics(run.metrics),
        checkpoints=tuple(
            sorted(int(p.name) for p in run.checkpoints.glob("[0-9]*") if p.is_dir())
        ),
        ranks=tuple(describe_all(run)) if ended is None else (),
        reason=None if ended is None else explain(run, ended),
    )


def show(run_dir: Path | str, console: Console | None = None) -> Status:
    """Print the status for people."""
    console = console or Console()
    status = read_status(run_dir)
    console.print(f"[bold]{status.run_dir}[/]: {status.summary}", highlight=False)
    console.print(_facts(status))
    if status.components:
        console.print(_components(status))
    for line in status.ranks:
        console.print(f"  {line}", highlight=False, markup=False)
    if status.reason:
        console.print(status.reason, style="red", highlight=False, markup=False)
    return status


def _steps_saved(run: RunDir) -> tuple[int, ...]:
    names = (path.name for path in run.checkpoints.glob("[0-9]*"))
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def _facts(status: Status) -> Table:
    table = Table.grid(padding=(0, 2))
    if status.metrics is not None:
        told = {k: v for k, v in status.metrics.items() if k != "kind" and v is not None}
        text = ", ".join(
            f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in told.items()
        )
        table.add_row("last metrics", text)
    if status.checkpoints:
        table.add_row("checkpoints", ", ".join(f"step {step}" for step in status.checkpoints))
    table.add_row("starts", f"{status.starts} ({status.restarts} by itself)")
    return table


def _components(status: Status) -> Table:
    table = Table(title=f"job {status.job_id}", title_justify="left")
    for column in ("component", "partition", "nodes", "state", "exit code", "restarts", "reason"):
        table.add_column(column)
    for part in status.components:
        code = str(part.exit_code) + (f" (signal {part.signal})" if part.signal else "")
        table.add_row(
            str(part.component),
            part.partition,
            part.nodes,
            part.state.lower(),
            code if part.ended else "",
            str(part.restarts),
            "" if part.reason == "None" else part.reason,
        )
    return table


def _job_id(events: list[history.Event]) -> int | None:
    """The Slurm job of the newest start, None when that was by mpirun."""
    last_start = history.last(events, "start")
    submits = [event for event in events if event["event"] in ("submit", "resubmit")]
    if not submits:
        return None
    by_mpirun = last_start is not None and last_start.get("launcher") == "mpirun"
    if by_mpirun and last_start is not None and last_start["time"] > submits[-1]["time"]:
        return None
    return int(submits[-1]["job_id"])


def _ended(events: list[history.Event]) -> ExitCode | None:
    """How the newest start ended, None while it runs, waits, or was never made."""
    end = history.last(history.since_last(events, "start"), "end")
    return None if end is None or end.get("again") else ExitCode(int(end["code"]))


def _summary(
    run: RunDir,
    events: list[history.Event],
    ended: ExitCode | None,
    components: tuple[ComponentState, ...],
) -> str:
    if ended is not None:
        return _WORDS.get(ended, f"ended with code {int(ended)}")
    if components and all(part.ended for part in components):
        states = {part.state.lower() for part in components}
        return f"ended without a last word ({', '.join(sorted(states))})"
    if components:
        return "waiting in the queue" if any(part.waiting for part in components) else "running"
    start = history.last(events, "start")
    if start is None:
        planned = run.layout.exists()
        ranks = f", {Layout.load(run.layout).num_ranks} ranks" if planned else ""
        return f"{'planned' if planned else 'prepared'}{ranks}, not started"
    return f"running for {time.time() - start['time']:.0f} s"
