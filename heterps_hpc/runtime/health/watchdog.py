"""Notices when nothing moves any more, reports who waits for whom, and stops if the job says so.

It starts before a rank first waits for another one. Until all ranks have come together they cannot
share heartbeats; a rank that waits for long in that time leaves a mark instead, a file that it
touches now and then, so that those without a fresh mark are known to be missing.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI

from heterps_hpc import events
from heterps_hpc.config import WatchSpec
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.heartbeats import SILENT_FACTOR, describe_all, read_beats
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.health.heartbeat import NodeHeartbeats, StartMarks
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.world import SECONDS_FOR_LAST_LINES

log = logging.getLogger(__name__)

_SECONDS_FOR_STACKS = 3.0  # other ranks notice within a tick or two
_SECONDS_FOR_LATE_STACKS = 10.0  # on a busy machine they need longer
_SECONDS_FOR_REPORT = 20.0  # then we stop even if the rank that reports is gone


@contextmanager
def _whatever_the_disk_says() -> Iterator[None]:
    """A full disk can be why nothing moves; it must not keep us from reporting it and ending."""
    try:
        yield
    except OSError as error:
        log.warning("not written: %s", error)


class Watchdog:
    """A thread per rank. It never touches MPI, except to end the world."""

    def __init__(
        self, rank: int, layout: Layout, run_dir: RunDir, spec: WatchSpec, timer: PhaseTimer
    ) -> None:
        self._rank = rank
        self._layout = layout
        self._run_dir = run_dir
        self._spec = spec
        self._timer = timer
        self._marks = StartMarks(run_dir, rank, layout.num_ranks, spec)
        self._heartbeats: NodeHeartbeats | None = None  # until all ranks have come together
        self._tick_seconds = min(1.0, spec.heartbeat_seconds / 4)
        self._over = threading.Event()
        self._looked_into = False  # of this stall
        self._thread = threading.Thread(target=self._work, name="heterps-watchdog", daemon=True)

    @contextmanager
    def running(self) -> Iterator[Watchdog]:
        """Watch until the end of the block."""
        self._thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._thread.join(timeout=5.0)

    def share_heartbeats(self, comm: MPI.Intracomm) -> None:
        """From now on ranks see each other's progress; all of them call it."""
        self._run_dir.heartbeats.mkdir(parents=True, exist_ok=True)
        if comm.rank == 0:
            for old in self._run_dir.heartbeats.glob("*.json"):
                old.unlink(missing_ok=True)
        comm.Barrier()
        every = self._spec.heartbeat_seconds
        self._heartbeats = NodeHeartbeats(comm, self._layout, self._run_dir, every)
        self._marks.remove()

    def _work(self) -> None:
        tick = 0.0  # the first beat at once
        while not self._over.wait(tick):
            tick = self._tick_seconds
            try:
                since = self._beat()
                if time.time() - since <= self._spec.stall_seconds or not self._all_stand_still():
                    self._looked_into = False
                elif not self._looked_into:
                    self._looked_into = True
                    self._stalled(since)
            except OSError as error:
                log.warning("heartbeat not written: %s", error)

    def _beat(self) -> float:
        """Show the others that we live; returns since when we have made no progress."""
        if self._heartbeats is None:
            return self._marks.beat(self._timer.count)
        return self._heartbeats.beat(self._timer)

    def _all_stand_still(self) -> bool:
        """Whether no rank anywhere has moved: a rank that works long keeps all others waiting."""
        if self._heartbeats is None:
            return True
        oldest = time.time() - self._spec.stall_seconds
        return all(beat.since < oldest for beat in read_beats(self._run_dir))

    def _stalled(self, since: float) -> None:
        with _whatever_the_disk_says():
            if self._heartbeats is not None:
                self._heartbeats.write()
            self._dump_stacks()
        is_reporter = self._is_reporter()
        if self._is_over_after(_SECONDS_FOR_STACKS if is_reporter else _SECONDS_FOR_REPORT, since):
            return
        if is_reporter:
            give_up = time.monotonic() + _SECONDS_FOR_LATE_STACKS
            while self._lacks_stacks(since) and time.monotonic() < give_up:
                if self._is_over_after(self._tick_seconds, since):
                    return
            self._report(since)
        if self._spec.on_stall != "stop" or self._is_over_after(SECONDS_FOR_LAST_LINES, since):
            return
        with _whatever_the_disk_says():
            end = events.RankEnded(rank=self._rank, code=int(ExitCode.STALLED))
            events.record(self._run_dir, end)
        MPI.COMM_WORLD.Abort(int(ExitCode.STALLED))

    def _is_over_after(self, seconds: float, since: float) -> bool:
        """Give other ranks time. True if the run has ended, or moves again: it was only slow."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._over.wait(min(left, self._tick_seconds)):
                return True
            with _whatever_the_disk_says():
                # also because who waits must not become silent
                if self._beat() != since or not self._all_stand_still():
                    return True
        return False

    def _alive(self) -> list[int]:
        """Ranks that show that they live."""
        if self._heartbeats is None:
            return self._marks.fresh()
        silent_after = SILENT_FACTOR * self._spec.heartbeat_seconds
        now = time.time()
        return [b.rank for b in read_beats(self._run_dir) if not b.is_silent(now, silent_after)]

    def _is_reporter(self) -> bool:
        """One rank reports for all: the first that is alive."""
        return self._rank == min(self._alive(), default=self._rank)

    def _report(self, since: float) -> None:
        if self._heartbeats is None:
            lines = [self._marks.describe_missing()]
        else:
            lines = describe_all(self._run_dir)
        report = self._run_dir.stall_report(self._timer.step)
        what = f"no progress for {self._spec.stall_seconds:g} s; stacks are in {report}"
        with _whatever_the_disk_says():
            report.write_text("\n".join([*lines, "", self._all_stacks(since)]), encoding="utf-8")
            events.record(self._run_dir, events.Stalled(step=self._timer.step, ranks=lines))
        log.error("%s\n%s", what, "\n".join(lines))
        sys.stderr.write("\n".join([f"heterps: {what}", *lines]) + "\n")
        sys.stderr.flush()

    def _dump_stacks(self) -> None:
        path = self._run_dir.stack(self._rank)
        part = path.with_suffix(".part")
        with part.open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        part.replace(path)  # whole at once: another rank waits for it

    def _has_stack(self, rank: int, since: float) -> bool:
        """Whether a rank has written its stacks, in this stall."""
        try:
            return self._run_dir.stack(rank).stat().st_mtime > since
        except OSError:
            return False

    def _lacks_stacks(self, since: float) -> bool:
        return not all(self._has_stack(rank, since) for rank in self._alive())

    def _all_stacks(self, since: float) -> str:
        """The stacks that ranks wrote in the last moments; a stopped rank has none."""
        alive = self._alive()
        parts = []
        for rank in range(self._layout.num_ranks):
            if self._has_stack(rank, since):
                text = self._run_dir.stack(rank).read_text(errors="replace")
            else:
                text = f"no stack: the rank is {'too slow' if rank in alive else 'silent'}\n"
            parts.append(f"rank {rank}:\n{text}")
        return "\n".join(parts)
