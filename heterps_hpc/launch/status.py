"""Status: where a run stands, derived once from events, locks, heartbeats and Slurm."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.table import Table

from heterps_hpc import events
from heterps_hpc.errors import UserError
from heterps_hpc.events import Ended, History, Started
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.heartbeats import SILENT_FACTOR, describe_all, read_nodes
from heterps_hpc.launch.failure import explain, outcome
from heterps_hpc.launch.progress import Metrics, last_metrics
from heterps_hpc.launch.slurm.job_state import ComponentState, state
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir


class RunPhase(StrEnum):
    """Where a run is between its first file and its last."""

    PREPARING = "measuring or planning"
    PREPARED = "prepared, not planned"
    PLANNED = "planned, not started"
    QUEUED = "waiting in the queue"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class RunState:
    """The one answer to: does it run, and if not, how did it end?"""

    phase: RunPhase
    code: ExitCode | None = None  # of an ended run
    since: float | None = None  # when the newest start was made


@dataclass(frozen=True)
class Status:
    """Everything that `heterps status` shows."""

    run_dir: Path
    state: RunState
    summary: str
    starts: int
    restarts: int
    job_id: int | None
    components: tuple[ComponentState, ...]
    metrics: Metrics | None
    checkpoints: tuple[int, ...]
    ranks: tuple[str, ...]
    reason: str | None


def derive_state(
    run: RunDir, history: History, components: tuple[ComponentState, ...] = ()
) -> RunState:
    """The state of a run, from what is recorded and from who is still there."""
    start = history.since(events.Submitted) if components else history
    newest = start.newest_start.last(Started)
    since = None if newest is None else newest.time
    end = start.newest_start.last(Ended)
    if run.has_ranks():
        return RunState(RunPhase.RUNNING, since=since)
    if components and not all(part.ended for part in components):
        waits = any(part.waiting for part in components)
        return RunState(RunPhase.QUEUED if waits else RunPhase.RUNNING, since=since)
    if end is not None and not end.again:
        return RunState(RunPhase.ENDED, events.exit_code(end), since)
    if newest is None and not components:
        if _heart_beats(run):
            return RunState(RunPhase.RUNNING)
        if run.holder() is not None:
            return RunState(RunPhase.PREPARING)
        return RunState(RunPhase.PLANNED if run.layout.exists() else RunPhase.PREPARED)
    if not components and (run.holder() is not None or _heart_beats(run)):
        return RunState(RunPhase.RUNNING, since=since)
    # whoever started the ranks could not record their end: they did, or nobody is left
    num_ranks = Layout.load(run.layout).num_ranks if run.layout.exists() else 0
    return RunState(RunPhase.ENDED, outcome(start, num_ranks, status=1), since)


def read_status(run_dir: Path | str) -> Status:
    """Look at a run."""
    run = RunDir(run_dir)
    if not run.job.exists():
        raise UserError(f"{run.path}: not a run directory (it has no {run.job.name})")
    history = events.read(run)
    job_id = history.job_id
    job = state(job_id) if job_id is not None and shutil.which("scontrol") else None
    components = () if job is None else job.components
    found = derive_state(run, history, components)
    checkpoints = tuple(run.saved_steps())
    return Status(
        run_dir=run.path,
        state=found,
        summary=_summary(run, found, checkpoints),
        starts=len(history.of(Started)),
        restarts=max(0, history.num_starts - 1),
        job_id=job_id,
        components=components,
        metrics=last_metrics(run.metrics),
        checkpoints=checkpoints,
        ranks=tuple(describe_all(run)) if found.phase == RunPhase.RUNNING else (),
        reason=None if found.code is None else explain(run, found.code),
    )


def show(run_dir: Path | str, console: Console | None = None) -> Status:
    """Print the status for people."""
    console = console or Console()
    status = read_status(run_dir)
    console.print(f"[bold]{status.run_dir}[/]: {status.summary}", highlight=False)
    console.print(_overview(status))
    if status.components:
        console.print(_components(status))
    for line in status.ranks:
        console.print(f"  {line}", highlight=False, markup=False)
    if status.reason:
        console.print(status.reason, style="red", highlight=False, markup=False)
    return status


def resume_command(run: RunDir) -> str:
    """How to continue a run where it ran before."""
    where = "--on slurm " if events.read(run).ran_on == "slurm" else ""
    return f"heterps launch --resume {where}{run.path}"


def format_value(value: object) -> str:
    """A number of the metrics for people: whole ones in full, others in four digits."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _heart_beats(run: RunDir) -> bool:
    """Whether a rank was there a moment ago, on whatever node."""
    now = time.time()
    return any(
        not beat.is_silent(now, SILENT_FACTOR * node.every_seconds)
        for node in read_nodes(run)
        for beat in node.beats
    )


def _summary(run: RunDir, found: RunState, checkpoints: tuple[int, ...]) -> str:
    if found.code is not None:
        return _ending(found.code, checkpoints)
    if found.phase == RunPhase.RUNNING and found.since is not None:
        return f"running for {time.time() - found.since:.0f} s"
    if found.phase == RunPhase.PLANNED:
        return f"{found.phase}, {Layout.load(run.layout).num_ranks} ranks"
    return str(found.phase)


def _ending(code: ExitCode, checkpoints: tuple[int, ...]) -> str:
    if code == ExitCode.STOPPED:
        return "stopped after a checkpoint" if checkpoints else "stopped before any checkpoint"
    known = {
        ExitCode.DONE: "done",
        ExitCode.USER_ERROR: "ended by a mistake in the job",
        ExitCode.RANK_FAILED: "failed",
        ExitCode.STALLED: "stalled",
        ExitCode.NOT_SAVED: "trained to the end, but the last state is not saved",
    }
    return known.get(code, f"ended with code {int(code)}")


def _overview(status: Status) -> Table:
    table = Table.grid(padding=(0, 2))
    if status.metrics is not None:
        shown = {k: v for k, v in status.metrics.items() if k != "kind" and v is not None}
        text = ", ".join(f"{name} {format_value(value)}" for name, value in shown.items())
        table.add_row("last metrics", text)
    if status.checkpoints:
        table.add_row("checkpoints", ", ".join(f"step {step}" for step in status.checkpoints))
    table.add_row("starts", f"{status.starts}, of which {status.restarts} automatic restarts")
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
