"""Status: where a run stands, derived once from events, locks, heartbeats and Slurm."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_hpc import events, run_lock
from heterps_hpc import format as fmt
from heterps_hpc.errors import UserError
from heterps_hpc.events import Ended, History, RankEnded, RanksDone, Started
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.heartbeats import SILENT_FACTOR, describe_all, read_nodes
from heterps_hpc.launch.failure import explain, outcome
from heterps_hpc.launch.run_progress import RunProgress, read_progress
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


_IDLE = (RunPhase.PREPARED, RunPhase.PLANNED)


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
    progress: RunProgress | None
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
    num_ranks = Layout.load(run.layout).num_ranks if run.layout.exists() else 0
    if run_lock.has_ranks(run):
        return RunState(RunPhase.RUNNING, since=since)
    if components and not all(part.ended for part in components):
        waits = any(part.waiting for part in components)
        return RunState(RunPhase.QUEUED if waits else RunPhase.RUNNING, since=since)
    if end is not None and not end.again:
        return RunState(RunPhase.ENDED, events.exit_code(end), since)
    # ranks that were started by hand, or whose launcher was killed, record their end themselves
    noted = start.newest_start.last(RankEnded) or start.newest_start.last(RanksDone)
    if not components and _has_heartbeat(run, after=0.0 if noted is None else noted.time):
        return RunState(RunPhase.RUNNING, since=since)
    if not components and noted is None:
        if run_lock.holder(run) is not None:
            return RunState(RunPhase.PREPARING if newest is None else RunPhase.RUNNING, since=since)
        if newest is None:
            return RunState(RunPhase.PLANNED if run.layout.exists() else RunPhase.PREPARED)
    return RunState(RunPhase.ENDED, outcome(start, num_ranks, status=1), since)


def read_status(run_dir: Path | str) -> Status:
    """Look at a run."""
    run = RunDir(run_dir)
    if not run.job.exists():
        raise UserError(
            f"{run.path}: not a run directory (it has no {run.job.name}); `heterps ls` lists runs"
        )
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
        progress=None if found.phase in _IDLE else read_progress(run),
        checkpoints=checkpoints,
        ranks=tuple(describe_all(run)) if found.phase == RunPhase.RUNNING else (),
        reason=None if found.code is None else explain(run, found.code),
    )


def show(run_dir: Path | str, console: Console | None = None, *, as_json: bool = False) -> Status:
    """Print the status for people, or for programs."""
    console = console or Console()
    status = read_status(run_dir)
    if as_json:
        console.print_json(json.dumps(dataclasses.asdict(status), default=str))
        return status
    print_line = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    print_line(f"{status.run_dir}: {status.summary}")
    if status.progress is not None:
        print_line(f"  {' · '.join(_progress_words(status.state, status.progress))}")
    if status.checkpoints:
        steps = ", ".join(fmt.count(step) for step in status.checkpoints)
        print_line(f"  checkpoints after step {steps}")
    if status.starts:
        automatic = f", {status.restarts} of them automatic" if status.restarts else ""
        print_line(f"  {fmt.plural(status.starts, 'start')}{automatic}")
    if status.components:
        console.print(_components(status))
    for line in status.ranks:
        print_line(f"  {line}")
    if status.reason:
        print_line(status.reason, style="red")
    return status


def _progress_words(state: RunState, progress: RunProgress) -> list[str]:
    """Of a run that has ended there is nothing to wait for."""
    if state.phase != RunPhase.ENDED:
        return progress.words()
    ended = dataclasses.replace(
        progress, elapsed_seconds=None, remaining_seconds=None, expected_money=None
    )
    return ended.words()[1:]


def short_state(state: RunState, progress: RunProgress | None) -> str:
    """The state in a word or two, for a list of runs."""
    if state.code is not None:
        return _SHORT.get(state.code, f"code {int(state.code)}")
    words = {
        RunPhase.PREPARING: "preparing",
        RunPhase.PREPARED: "prepared",
        RunPhase.PLANNED: "planned",
        RunPhase.QUEUED: "queued",
        RunPhase.RUNNING: "running",
    }
    fraction = None if progress is None else progress.fraction
    done = "" if fraction is None else f" {fmt.percent(fraction, 0)}"
    return words[state.phase] + done


def resume_command(run: RunDir) -> str:
    """How to continue a run where it ran before."""
    where = "--on slurm " if events.read(run).ran_on == "slurm" else ""
    return f"heterps launch --resume {where}{run.path}"


def _has_heartbeat(run: RunDir, after: float) -> bool:
    """Whether a rank was there a moment ago, on whatever node, and after that time."""
    now = time.time()
    return any(  # a clock that was set back must not make a dead run alive
        beat.at > after and abs(now - beat.at) <= SILENT_FACTOR * node.every_seconds
        for node in read_nodes(run)
        for beat in node.beats
    )


def _summary(run: RunDir, found: RunState, checkpoints: tuple[int, ...]) -> str:
    if found.code is not None:
        return _ending(found.code, checkpoints)
    if found.phase == RunPhase.RUNNING and found.since is not None:
        return f"running for {fmt.clock(time.time() - found.since)}"
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


_SHORT = {
    ExitCode.DONE: "done",
    ExitCode.USER_ERROR: "refused",
    ExitCode.STOPPED: "stopped",
    ExitCode.RANK_FAILED: "failed",
    ExitCode.STALLED: "stalled",
    ExitCode.NOT_SAVED: "not saved",
}


def _components(status: Status) -> Table:
    """Columns that say nothing are left out, so that the others fit."""
    rows = [
        {
            "part": str(part.component),
            "partition": part.partition,
            "nodes": "" if part.nodes == "(null)" else part.nodes,
            "state": part.state.lower(),
            "exit code": _exit_code(part) if part.ended else "",
            "restarts": str(part.restarts or ""),
            "reason": "" if part.reason == "None" else part.reason,
        }
        for part in status.components
    ]
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    title = f"job {status.job_id}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[column]) for column in columns))
    return table


def _exit_code(part: ComponentState) -> str:
    return str(part.exit_code) + (f" (signal {part.signal})" if part.signal else "")
