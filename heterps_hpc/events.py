"""Events: what happened to a run, as typed records in history.jsonl, never rewritten.

Launchers and ranks on several nodes append to the same file, so each event is one `write` of one
short line to a file opened for appending. The batch script appends lines of its own
(slurm/templates); their keys are the fields below.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heterps_hpc.atomic_file import naming
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

Line = dict[str, Any]  # one event as it stands in the file


class Event(BaseModel):
    """Something that happened, when and where."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    kind: ClassVar[str] = ""

    time: float = Field(default_factory=time.time)
    host: str = Field(default_factory=socket.gethostname)

    def to_line(self) -> Line:
        """As it stands in the file."""
        return {"event": self.kind, **self.model_dump(mode="json", exclude_none=True)}


class Launched(Event):
    """The user started the run; restarts are counted from here."""

    kind = "launch"
    on: str = "local"
    num_ranks: int = 0
    ranks: dict[str, int] = Field(default_factory=dict)  # by pool


class Submitted(Event):
    """A Slurm job was queued."""

    kind = "submit"
    job_id: int
    num_components: int = 1


class Started(Event):
    """Ranks are being started."""

    kind = "start"
    launcher: str = ""  # mpirun or srun
    restart: int = 0
    job_id: int | None = None


class Ended(Event):
    """The ranks of a start are gone."""

    kind = "end"
    code: int
    status: int | None = None  # of mpirun or srun
    restart: int = 0
    again: bool = False  # the job was queued again


class RankEnded(Event):
    """A rank ended before the end of the work, and why."""

    kind = "rank_end"
    rank: int
    code: int
    reason: str | None = None


class RanksDone(Event):
    """All ranks of the world have done all of their work."""

    kind = "ranks_done"
    num_ranks: int


class StopWanted(Event):
    """Someone asked the run to stop: it must not be started again by itself."""

    kind = "stop_wanted"
    why: str = ""
    save: bool = True
    job_id: int | None = None


class PlannedAgain(Event):
    """There is a new layout: nodes are gone, or the run's own times gave a cheaper one."""

    kind = "planned_again"
    capacity: dict[str, int] = Field(default_factory=dict)  # ranks that the pools could give
    ranks: dict[str, int] = Field(default_factory=dict)  # of the new layout, by pool
    saving: float | None = None  # of the money that was left to spend; None: nodes were gone


class LayoutChangeWanted(Event):
    """A cheaper layout was found: the ranks are to save and end, and the run continues on it."""

    kind = "layout_change"
    running: bool = True  # else its ranks had ended and the job was queued again


class Leaderless(Event):
    """The first node of a job died; a watcher has requeued the job."""

    kind = "leaderless"
    job_id: int = 0


class Torn(Event):
    """Slurm queued component 0 alone again; the job was ended."""

    kind = "torn"
    job_id: int = 0


class NodesLost(Event):
    """A requeued job does not fit the nodes that are left; it was ended."""

    kind = "lost_nodes"
    job_id: int = 0


class TaskBegan(Event):
    """`heterps` works on something other than training: data, measure or plan."""

    kind = "task"
    task: str
    part: str = ""  # such as: pool cpu with 2 ranks
    number: int | None = None  # of this part, from 1
    total: int | None = None  # parts


class TaskEnded(Event):
    """All parts of a task are done, or it failed."""

    kind = "task_end"
    task: str
    seconds: float = 0.0


class TrainingBegan(Event):
    """The ranks are ready: from here on they train."""

    kind = "training"
    step: int = 0
    total_steps: int = 0


class PreflightPassed(Event):
    """The world is the one that the layout describes."""

    kind = "preflight"
    mpi: str = ""
    free_bytes: dict[str, int] = Field(default_factory=dict)
    links: list[dict[str, Any]] = Field(default_factory=list)
    devices: dict[str, str] = Field(default_factory=dict)  # accelerators that ranks see, by node


class CheckpointSaved(Event):
    """A checkpoint is complete."""

    kind = "checkpoint"
    step: int
    num_bytes: int = 0
    seconds: float = 0.0
    pause_seconds: float = 0.0


class SaveFailure(Event):
    """A checkpoint could not be written."""

    kind = "save_failed"
    step: int
    why: str = ""


class Stalled(Event):
    """No rank has moved for too long."""

    kind = "stall"
    step: int
    ranks: list[str] = Field(default_factory=list)


_KINDS = {each.kind: each for each in Event.__subclasses__()}
E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class History:
    """The events of a run, oldest first, and the questions that launchers ask of them."""

    events: tuple[Event, ...] = ()

    def of(self, kind: type[E]) -> list[E]:
        """All events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def last(self, kind: type[E]) -> E | None:
        """The newest event of one kind."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)

    def since(self, kind: type[Event]) -> History:
        """From the newest event of that kind on (everything if there is none)."""
        for index in range(len(self.events) - 1, -1, -1):
            if isinstance(self.events[index], kind):
                return History(self.events[index:])
        return self

    @property
    def was_launched(self) -> bool:
        """Whether ranks were started, or queued; a run may have been measured and planned only."""
        return any(not isinstance(event, TaskBegan | TaskEnded) for event in self.events)

    @property
    def task(self) -> TaskBegan | None:
        """What `heterps` works on, if it has not ended nor ranks were started since."""
        last = next(
            (e for e in reversed(self.events) if isinstance(e, TaskBegan | TaskEnded | Launched)),
            None,
        )
        return last if isinstance(last, TaskBegan) else None

    @property
    def newest_start(self) -> History:
        """The newest start and what followed."""
        return self.since(Started)

    @property
    def num_starts(self) -> int:
        """How often ranks were started since the user asked for it."""
        return len(self.since(Launched).of(Started))

    @property
    def num_restarts(self) -> int:
        """How many of them count as restarts, and the first: a change of layout does not."""
        changes = self.since(Launched).of(LayoutChangeWanted)
        return self.num_starts - sum(change.running for change in changes)

    @property
    def stop_wanted(self) -> bool:
        """Whether someone has asked the run to stop since the user started it."""
        return self.since(Launched).last(StopWanted) is not None

    @property
    def rank_codes(self) -> list[int]:
        """What ranks of the newest start noted at their end."""
        return [event.code for event in self.newest_start.of(RankEnded)]

    @property
    def num_ranks_done(self) -> int:
        """Size of the world whose ranks have all done their work, 0 if they have not."""
        done = self.newest_start.last(RanksDone)
        return 0 if done is None else done.num_ranks

    @property
    def job_id(self) -> int | None:
        """The Slurm job of the run, None if mpirun started it last."""
        job = max(self.of(Submitted), key=lambda event: event.time, default=None)
        start = self.last(Started)
        if start is not None and (job is None or start.time > job.time):
            return start.job_id
        return None if job is None else job.job_id

    @property
    def ran_on(self) -> str:
        """The launcher that the run was last given to: `local` or `slurm`."""
        launched = self.last(Launched)
        if self.job_id is not None:
            return "slurm"
        return "local" if launched is None or self.last(Started) else launched.on


def record(run: RunDir, event: Event) -> None:
    """Append one event."""
    line = json.dumps(event.to_line()).encode() + b"\n"
    try:
        handle = os.open(run.history, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    except IsADirectoryError:
        raise UserError(
            f"{run.history}: is a directory, expected a file; move it away, or choose another run "
            "directory with --run-dir"
        ) from None
    try:
        with naming(run.history):
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                line = b"\n" + line  # a full disk has cut the line before
            if os.write(handle, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(handle)


def record_if_possible(run: RunDir, event: Event) -> None:
    """Append an event that the run can do without: a full disk must not end it, nor its end."""
    try:
        record(run, event)
    except OSError as error:
        log.warning("%s: %s is not recorded: %s", run.history, event.kind, error.strerror)


def read(run: RunDir) -> History:
    """All events; lines that cannot be read are passed over."""
    return History(tuple(found for line in read_lines(run) if (found := parse(line)) is not None))


def read_lines(run: RunDir) -> list[Line]:
    """All lines as they stand, oldest first; one cut short by a dead node is passed over.

    A line without a time happened after the line before it.
    """
    try:
        text = run.history.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, IsADirectoryError):
        return []
    lines = []
    before: Any = 0.0
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and "event" in found:
            before = found.setdefault("time", before)
            lines.append(found)
    return lines


def parse(line: Mapping[str, Any]) -> Event | None:
    """The typed event of a line; None for a kind or for values that this version does not know."""
    kind = _KINDS.get(str(line.get("event")))
    if kind is None:
        return None
    try:
        return kind.model_validate({"host": "", **line})
    except ValidationError:
        return None


def exit_code(event: Ended) -> ExitCode:
    """The outcome that an end noted; a code of another version counts as a failure."""
    return ExitCode(event.code) if event.code in set(ExitCode) else ExitCode.RANK_FAILED
