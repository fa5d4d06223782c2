"""Heartbeats: what each rank was last seen doing, one small file per node.

Ranks write them (heterps_hpc.runtime.health.watchdog); launchers, `heterps status` and people
read them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from heterps_hpc.errors import UserError
from heterps_hpc.rundir import RunDir
from heterps_hpc.validation import Value

SILENT_FACTOR = 4.0  # missed heartbeats before a rank counts as silent


class Beat(Value):
    """One rank, as it was `at` a moment; `since` is when it last made progress."""

    rank: Annotated[int, Field(ge=0)]
    role: str
    stage: int
    host: str
    pid: int
    step: int
    phase: str
    peer: int | None = None  # the rank it waits for
    pass_done: int = 0  # batches of a pass over test data
    pass_total: int = 0  # 0: no such pass
    at: float
    since: float
    steps: int = 0  # that this start has trained
    training_seconds: float = 0.0  # that they took, without evaluations and saves
    seconds: dict[str, float] = Field(default_factory=dict)  # of them, by phase

    def describe(self, now: float, silent_after: float) -> str:
        """One line for people, such as: rank 3 sparse stage 0 on n1 waits for gradients of …"""
        who = f"rank {self.rank} {self.role} stage {self.stage} on {self.host}"
        doing = f"in phase {self.phase!r}"
        if self.phase.startswith("wait"):
            what = self.phase.removeprefix("wait ").removeprefix("for ")
            doing = f"waits for {what}" + ("" if self.peer is None else f" of rank {self.peer}")
        if now - self.at > silent_after:
            return (
                f"{who} has been silent for {now - self.at:.0f} s (stopped, or its node is gone); "
                f"last seen at step {self.step}, {doing}"
            )
        return f"{who} {doing}, step {self.step}, {now - self.since:.0f} s"

    def is_silent(self, now: float, silent_after: float) -> bool:
        """Whether its heartbeats have stopped."""
        return now - self.at > silent_after


class NodeBeats(Value):
    """The file of one node."""

    version: Annotated[int, Field(ge=1, le=1)] = 1
    node: str
    written_at: float
    every_seconds: float
    beats: tuple[Beat, ...]


def read_beats(run: RunDir) -> list[Beat]:
    """The last known beat of every rank, by rank; files that cannot be read are skipped."""
    return sorted(
        (beat for node in read_nodes(run) for beat in node.beats), key=lambda beat: beat.rank
    )


def read_nodes(run: RunDir) -> list[NodeBeats]:
    """The files of all nodes."""
    found = []
    for path in sorted(run.heartbeats.glob("*.json")):
        try:
            found.append(NodeBeats.parse(json.loads(path.read_bytes()), str(path)))
        except (OSError, ValueError, UserError):
            continue
    return found


def describe_all(run: RunDir, now: float | None = None) -> list[str]:
    """One line per rank, the silent ones first: they are the likeliest cause."""
    now = time.time() if now is None else now
    lines: list[tuple[bool, int, str]] = []
    for node in read_nodes(run):
        limit = SILENT_FACTOR * node.every_seconds
        for beat in node.beats:
            silent = beat.is_silent(now, limit)
            lines.append((not silent, beat.rank, beat.describe(now, limit)))
    return [line for _, _, line in sorted(lines)]


# how launchers name a process that died: hydra and Open MPI by its PID, srun by its task
_DEAD_PROCESS = re.compile(r"\bPID[ :]+(\d+)")
_TASKS = r"\btasks? (\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*): "
_DEAD_TASKS = re.compile(_TASKS + r"(?:Killed|Terminated|Segmentation|Aborted|Bus)")
_EXITED_TASKS = re.compile(_TASKS + r"Exited with (exit code \d+)")
SIGNAL_OF_DEAD = re.compile(r"(?:KILLED BY SIGNAL|EXIT CODE|on signal)[: ]+(\d+)")


def describe_dead(run: RunDir, lines: Iterable[str]) -> str | None:
    """Which rank was killed before it could report, from the launcher's output and heartbeats."""
    text = "\n".join(lines)
    pids = {int(number) for number in _DEAD_PROCESS.findall(text)}
    how = SIGNAL_OF_DEAD.search(text)
    killed = f"killed by signal {how.group(1)}" if how else "killed"
    ends = [(_ranges(found), killed) for found in _DEAD_TASKS.findall(text)]
    ends += [(_ranges(found), f"ended with {code}") for found, code in _EXITED_TASKS.findall(text)]
    beats = read_beats(run)
    of_pids = [range(beat.rank, beat.rank + 1) for beat in beats if beat.pid in pids]
    for ranks, cause in [(of_pids, killed), *ends]:
        for beat in beats:
            if any(beat.rank in each for each in ranks):
                return (
                    f"rank {beat.rank} {beat.role} stage {beat.stage} on {beat.host}, step "
                    f"{beat.step}, phase {beat.phase!r}: {cause}"
                )
    return None


def _ranges(text: str) -> list[range]:
    """Numbers and ranges of them, as Slurm lists its tasks: 0,2-3."""
    bounds = [part.partition("-") for part in text.split(",")]
    return [range(int(first), int(last or first) + 1) for first, _, last in bounds]
