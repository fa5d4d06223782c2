"""A layout on this machine: one mpirun, one world, an end in time and no process left behind."""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime

import psutil

from heterps_hpc import events, run_lock
from heterps_hpc import format as fmt
from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.events import Ended, Event, LayoutChangeWanted, Started, StopWanted
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.failure import (
    SHARED_MEMORY,
    free_shared_memory,
    mark_start,
    outcome,
)
from heterps_hpc.launch.launcher import Capacity, LaunchRequest, Listener, Replanner
from heterps_hpc.launch.mpi import Mpi, find_mpi, mpi_environment
from heterps_hpc.launch.process_tree import ProcessTree
from heterps_hpc.launch.progress import Progress
from heterps_hpc.launch.rank_command import rank_command, without_launchers
from heterps_hpc.launch.same_directory import SameDirectory
from heterps_hpc.launch.stop_requests import StopRequests
from heterps_hpc.launch.stopped_ranks import StoppedRanks
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_MAX_SECONDS_TO_SAVE = 60.0
_GRACE_SECONDS = 5.0
_LOOK_SECONDS = 5.0  # to look through all processes takes a moment
_MIN_SHARED_MEMORY = 1 << 20


class LocalLauncher:
    """Starts ranks by the mpirun of this machine."""

    name = "local"
    one_machine = True

    def __init__(
        self, mpi: Mpi | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._mpi = mpi
        self._environment = dict(environment or {})

    def check(self, request: LaunchRequest) -> None:
        """Refuse what mpirun or the ranks would fail at."""
        request.run.create().check_usable(request.layout.num_ranks)
        check_shared_memory()
        check_cores(request.layout, num_cores(), request.job.launch.oversubscribe)
        if self._mpi is None:
            find_mpi()

    def start(self, request: LaunchRequest, listener: Listener = Listener()) -> ExitCode:  # noqa: B008
        """Start a layout here once, and wait for its end.

        A signal once asks the ranks to save and stop, twice ends them at once; once, if they have
        nothing to save.
        """
        self.check(request)
        mpi = self._mpi or find_mpi()
        variables = {
            **mpi_environment(mpi.flavour, "local"),
            **without_launchers(os.environ),
            **self._environment,
        }
        with StopRequests() as stops:
            start = _Start(request, mpirun_command(request, mpi), variables, stops)
            code = start.run(listener)
            start.note_late_stop()
        return code

    def submit(self, request: LaunchRequest) -> str:
        """Nobody would watch the ranks of a local run whose launcher has ended."""
        raise UserError("--no-wait needs --on slurm; for a run here use `nohup heterps … &`")

    def preview(self, request: LaunchRequest) -> str:
        """The command of mpirun."""
        return shlex.join(mpirun_command(request, self._mpi or find_mpi()))

    def expected_start(self, request: LaunchRequest) -> datetime | None:
        """At once."""
        return None

    def capacity(self, cluster: Cluster, job: Job) -> Capacity:
        """Ranks that this machine can hold of each pool."""
        limit = sys.maxsize if job.launch.oversubscribe else num_cores()
        return {pool.name: min(pool.rank_limit, limit) for pool in cluster.pools}

    def node_capacity(self, pool: Pool) -> int:
        """Ranks of the pool that have cores of their own here."""
        return min(pool.ranks_per_node, max(1, num_cores() // pool.cores_per_rank))

    def cancel(self, run: RunDir, *, save: bool) -> str:
        """Ask the `heterps` that holds the run directory to stop."""
        holder = run_lock.holder(run)
        if holder is None:
            raise UserError(f"{run.path}: nothing is running here; nothing to cancel")
        pid, _, host = holder.partition(" on ")
        if host != os.uname().nodename or not pid.isdigit():
            raise UserError(f"{run.path}: is run by process {holder}; cancel it there")
        try:
            os.kill(int(pid), signal.SIGTERM)
            if not save:  # another one: two of a kind may be taken for one
                os.kill(int(pid), signal.SIGUSR1)  # scripts ignore SIGINT for `heterps … &`
        except PermissionError:
            raise UserError(
                f"{run.path}: process {pid} is another user's; ask its owner (`ps -o user= {pid}`)"
            ) from None
        except ProcessLookupError:
            return f"process {pid}: has ended"
        return f"process {pid}: {'saving' if save else 'stopping'}"


def num_cores() -> int:
    """Cores that we may use."""
    return len(os.sched_getaffinity(0))


def mpirun_command(request: LaunchRequest, mpi: Mpi, python: str = sys.executable) -> list[str]:
    """The argument list of mpirun: one block per component, in the order of ranks."""
    launch = request.job.launch
    command = [str(mpi.mpirun)]
    if mpi.flavour == "mpich":
        # fork: were we inside a Slurm job, hydra would call srun and see component 0 alone
        command += ["-launcher", "fork", "-bind-to", launch.bind]
    else:
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command += ["--bind-to", launch.bind]
        command += ["--map-by", "slot:OVERSUBSCRIBE"] if launch.oversubscribe else []
    for number, component in enumerate(request.layout.components):
        command += [":"] if number else []
        command += ["-n", str(component.num_ranks)]
        command += rank_command(
            request.run.path, number, component, python, program=request.program
        )
    return command


def check_cores(layout: Layout, cores: int, oversubscribe: bool) -> None:
    """Refuse more ranks than cores unless asked for: they would take turns, and times mislead."""
    if layout.num_ranks > cores and not oversubscribe:
        raise UserError(
            f"the layout has {layout.num_ranks} ranks, this machine {cores} cores; plan for "
            "fewer ranks (`max_ranks` of the pools), or set `launch.oversubscribe: true`"
        )
    threads = sum(part.num_ranks * part.cores_per_rank for part in layout.components)
    if threads > cores:
        log.warning("%d threads of all ranks share %d cores; expect less speed", threads, cores)


def check_shared_memory() -> None:
    """Ranks would be killed by a bus error as soon as they meet."""
    free = free_shared_memory()
    if free < _MIN_SHARED_MEMORY:
        raise UserError(
            f"{SHARED_MEMORY} is full ({free} bytes free), where MPI keeps messages; remove old "
            "files there, or enlarge it"
        )


class _Start:
    """One start of mpirun, from the first process to the last."""

    def __init__(
        self,
        request: LaunchRequest,
        command: list[str],
        variables: Mapping[str, str],
        stops: StopRequests,
    ) -> None:
        minutes = request.job.launch.time_limit_minutes
        limit_seconds = math.inf if minutes is None else minutes * 60
        self._run = request.run
        self._directory = SameDirectory(request.run.path)
        self._num_ranks = request.layout.num_ranks
        self._command = command
        self._variables = variables
        self._deadline = time.monotonic() + limit_seconds
        self._save_at = self._deadline - min(_MAX_SECONDS_TO_SAVE, 0.2 * limit_seconds)
        self._stops = stops
        self._asked = False
        self._saves = request.saves
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._looks_without_ranks: int | None = None  # None: no rank was seen yet
        self._stopped = StoppedRanks(request.run, request.job.watch)

    def run(self, listener: Listener) -> ExitCode:
        with closing(self._directory):
            return self._run_ranks(listener)

    def _run_ranks(self, listener: Listener) -> ExitCode:
        restart = events.read(self._run).num_starts
        events.record(self._run, Started(launcher="mpirun", restart=restart))
        mark_start(self._run)
        progress = Progress(self._run.metrics, listener.progress)
        tree = ProcessTree(self._command, self._variables, self._run.launcher_log, listener.line)
        try:
            self._watch(tree, progress.poll, listener.replanner)
        finally:
            status = tree.end(_GRACE_SECONDS)
        progress.poll()
        as_asked = self._asked and not self._saves
        return self._conclude(status, restart, killed=tree.killed and not as_asked)

    def _watch(self, tree: ProcessTree, poll: Callable[[], None], replanner: Replanner) -> None:
        """Wait until mpirun ends, or must be ended."""
        while tree.wait(_POLL_SECONDS) is None:
            poll()
            now = time.monotonic()
            if not self._directory.is_there():
                return
            if self._stops.count > 1 or now > self._deadline:
                log.warning("ending all ranks now")
                return
            if self._stops.count and not self._saves:
                self.note_late_stop()
                return
            if now > self._next_look and self._must_be_ended(tree.ranks()):
                return
            if not self._asked and (self._stops.count or now > self._save_at):
                why = self._stops.first or "the time limit is near"
                self._ask(tree, StopWanted(why=why), why)
            elif not self._asked and replanner.poll():
                self._ask(tree, LayoutChangeWanted(), "a cheaper layout was found")

    def _must_be_ended(self, ranks: Mapping[int, psutil.Process]) -> bool:
        """A look at all ranks, now and then."""
        self._next_look = time.monotonic() + _LOOK_SECONDS
        if self._are_gone(ranks):
            log.warning("mpirun has no ranks any more but does not end; ending it")
            return True
        stopped = self._stopped.look(ranks)
        if stopped is not None:
            log.warning("%s", stopped)
        return stopped is not None and self._stopped.ends_run

    def _are_gone(self, ranks: Mapping[int, psutil.Process]) -> bool:
        """Whether mpirun had ranks, and has had none for a while: someone has stopped it."""
        if ranks:
            self._looks_without_ranks = 0
        elif self._looks_without_ranks is not None:
            self._looks_without_ranks += 1
        return (self._looks_without_ranks or 0) > 1

    def _ask(self, tree: ProcessTree, event: Event, why: str) -> None:
        self._asked = True
        events.record_if_possible(self._run, event)
        num_ranks = tree.signal_ranks(signal.SIGUSR1)
        log.warning("%s: asked %s to save and stop", why, fmt.plural(num_ranks, "rank"))

    def note_late_stop(self) -> None:
        """Record a signal that was not passed on: the ranks had ended, or have nothing to save."""
        if self._stops.count and not self._asked:
            self._asked = True
            events.record_if_possible(self._run, StopWanted(why=self._stops.first))

    def _conclude(self, status: int, restart: int, *, killed: bool) -> ExitCode:
        if not self._directory.is_there():
            raise UserError(
                f"{self._run.path}: the run directory was deleted or moved while the run used it; "
                "its ranks were ended; start the job again"
            )
        code = outcome(events.read(self._run), self._num_ranks, status, killed=killed)
        end = Ended(code=int(code), status=status, restart=restart)
        events.record_if_possible(self._run, end)
        return code
