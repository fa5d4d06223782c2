"""Ranks that someone has stopped (SIGSTOP), and that nobody else notices.

Ranks watch each other (heterps_hpc.runtime.health.watchdog), but only once all of them have met:
until then the others wait inside of MPI. And where all are stopped, nobody is left to watch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress

import psutil

from heterps_hpc import events
from heterps_hpc import format as fmt
from heterps_hpc.config import WatchSpec
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.rundir import RunDir

_SECONDS_FOR_RANKS = 30.0  # their own watchdog is first, and knows more: stacks, who waits for whom


class StoppedRanks:
    """Notes since when ranks are stopped; reports those that are for too long, each once."""

    def __init__(self, run: RunDir, spec: WatchSpec) -> None:
        self._run = run
        self._spec = spec
        self._since: dict[psutil.Process, float] = {}
        self._reported: set[psutil.Process] = set()

    def look(self, ranks: Mapping[int, psutil.Process]) -> str | None:
        """A line about ranks that must be ended, or were not known to be stopped."""
        now = time.monotonic()
        stopped = {rank: process for rank, process in ranks.items() if _is_stopped(process)}
        self._since = {each: self._since.get(each, now) for each in stopped.values()}
        limit = self._spec.stall_seconds + _SECONDS_FOR_RANKS
        late = {
            rank: process
            for rank, process in stopped.items()
            if now - self._since[process] > limit and process not in self._reported
        }
        if not late:
            return None
        self._reported |= set(late.values())
        return self._report(late, now)

    def _report(self, late: Mapping[int, psutil.Process], now: float) -> str:
        lines = [
            f"rank {rank} on {os.uname().nodename} has been stopped for "
            f"{fmt.clock(now - self._since[process])}: process {process.pid} waits for SIGCONT, "
            "and the others wait for it"
            for rank, process in late.items()
        ]
        events.record_if_possible(self._run, events.Stalled(step=0, ranks=lines))
        if self.ends_run:
            ended = events.RankEnded(rank=min(late), code=int(ExitCode.STALLED))
            events.record_if_possible(self._run, ended)
        return "\n".join(lines)

    @property
    def ends_run(self) -> bool:
        """Whether the job wants such a run to end."""
        return self._spec.on_stall == "stop"


def _is_stopped(process: psutil.Process) -> bool:
    """By a signal: not by a debugger, which someone sits at."""
    with suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False
