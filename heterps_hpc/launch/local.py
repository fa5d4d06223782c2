"""A layout on this machine: one mpirun, one world, an end in time and no process left behind."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from heterps_hpc import history
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode, outcome
from heterps_hpc.launch.mpi import Mpi, find_mpi
from heterps_hpc.launch.mpi_env import mpi_environment
from heterps_hpc.launch.process_tree import OnLine, ProcessTree
from heterps_hpc.launch.progress import OnProgress, Progress
from heterps_hpc.launch.rank_command import (
    RANK_PROGRAM,
    rank_command,
    thread_environment,
    with_environment,
    without_launchers,
)
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_MOST_SECONDS_TO_SAVE = 60.0
_GRACE_SECONDS = 5.0


def mpirun_command(
    layout: Layout,
    run_dir: Path,
    mpi: Mpi,
    *,
    python: str,
    oversubscribe: bool = False,
    bind: str = "none",
    as_root: bool = False,
    program: str = RANK_PROGRAM,
) -> list[str]:
    """The argument list of mpirun: one block per component, in the order of ranks."""
    command = [str(mpi.mpirun)]
    if mpi.flavour == "mpich":
        # fork: were we inside a Slurm job, hydra would call srun and see component 0 alone
        command += ["-launcher", "fork", "-bind-to", bind]
    else:
        command += ["--allow-run-as-root"] if as_root else []
        command += ["--bind-to", bind]
        command += ["--map-by", "slot:OVERSUBSCRIBE"] if oversubscribe else []
    for number, component in enumerate(layout.components):
        command += [":"] if number else []
        ranks = rank_command(run_dir, number, python, program=program)
        command += ["-n", str(component.num_ranks)]
        command += with_environment(thread_environment(component), ranks)
    return command


def check_cores(layout: Layout, num_cores: int, oversubscribe: bool) -> None:
    """Refuse more ranks than cores unless asked for: they would take turns, and times mislead."""
    if layout.num_ranks > num_cores and not oversubscribe:
        raise UserError(
            f"the layout has {layout.num_ranks} ranks, this machine {num_cores} cores; plan for "
            "fewer ranks (`max_ranks` of the pools), or set `launch.oversubscribe: true`"
        )
    threads = sum(part.num_ranks * part.cores_per_rank for part in layout.components)
    if threads > num_cores:
        log.warning("%d threads of all ranks share %d cores; expect less speed", threads, num_cores)


def run(
    run_dir: Path | str,
    layout: Layout,
    job: Job,
    *,
    mpi: Mpi | None = None,
    python: str | None = None,
    program: str = RANK_PROGRAM,
    environment: Mapping[str, str] | None = None,
    on_line: OnLine | None = None,
    on_progress: OnProgress | None = None,
) -> ExitCode:
    """Start a layout here once, and wait for its end; ranks go on from the newest checkpoint.

    SIGINT or SIGTERM once asks the ranks to save and stop, twice ends them at once.
    """
    directory = RunDir(run_dir).create()
    check_cores(layout, len(os.sched_getaffinity(0)), job.launch.oversubscribe)
    mpi = mpi or find_mpi()
    command = mpirun_command(
        layout,
        directory.path,
        mpi,
        python=python or sys.executable,
        oversubscribe=job.launch.oversubscribe,
        bind=job.launch.bind,
        as_root=os.geteuid() == 0,
        program=program,
    )
    variables = {
        **mpi_environment(mpi.flavour, "local"),
        **without_launchers(os.environ),
        **(environment or {}),
    }
    with StopRequests() as stops:
        start = _Start(directory, command, variables, job.launch.time_limit_minutes * 60, stops)
        return start.run(on_line, on_progress)


class StopRequests:
    """Counts the signals that ask us to stop, instead of dying of them."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: whoever owns the signals stops us otherwise
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


class _Start:
    """One start of mpirun, from the first process to the last."""

    def __init__(
        self,
        directory: RunDir,
        command: list[str],
        variables: Mapping[str, str],
        limit_seconds: float,
        stops: StopRequests,
    ) -> None:
        self._run = directory
        self._command = command
        self._variables = variables
        self._deadline = time.monotonic() + limit_seconds
        self._save_at = self._deadline - min(_MOST_SECONDS_TO_SAVE, 0.2 * limit_seconds)
        self._stops = stops
        self._asked = False

    def run(self, on_line: OnLine | None, on_progress: OnProgress | None) -> ExitCode:
        restart = history.num_starts(history.read(self._run))
        history.record(self._run, "start", launcher="mpirun", restart=restart)
        progress = Progress(self._run.metrics, on_progress)
        tree = ProcessTree(self._command, self._variables, self._run.logs / "launcher.log", on_line)
        try:
            status = self._watch(tree, progress.poll)
        finally:
            last_status = tree.end(_GRACE_SECONDS)
        progress.poll()
        code = self._outcome(last_status if status is None else status)
        history.record(self._run, "end", code=int(code), restart=restart)
        return code

    def _watch(self, tree: ProcessTree, poll: Callable[[], None]) -> int | None:
        """Wait for the end; None when patience ended first."""
        while (status := tree.wait(_POLL_SECONDS)) is None:
            poll()
            now = time.monotonic()
            if self._stops.count > 1 or now > self._deadline:
                log.warning("ending all ranks now")
                self._asked = True
                return None
            if not self._asked and (self._stops.count or now > self._save_at):
                self._asked = True
                num_ranks = tree.signal_ranks(signal.SIGUSR1)
                why = "a signal" if self._stops.count else "the time limit is near"
                log.warning("%s: asked %d ranks to save and stop", why, num_ranks)
        return status

    def _outcome(self, status: int) -> ExitCode:
        events = history.since_last(history.read(self._run), "start")
        noted = [event["code"] for event in events if event["event"] == "rank_end"]
        code = outcome(status, noted)
        # ranks that were too young to catch the signal simply died of it, as they were asked to
        return ExitCode.STOPPED if self._asked and code == ExitCode.RANK_FAILED else code
