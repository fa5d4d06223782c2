"""A layout as one Slurm job: ask Slurm first, submit, follow it to its end, end it.

Slurm's refusals are passed on as it worded them. The batch script itself requeues the job after a
failure or a time limit (epilogue); what only someone outside of the job can see, a job torn apart
or nodes that do not come back, is ended here, and the restart policy decides what follows.
"""

from __future__ import annotations

import logging
import re
import sys
import tempfile
import time
from datetime import datetime
from importlib.util import find_spec

from heterps_hpc import events
from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.cluster import Cluster, Pool, Site
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.events import Ended, LayoutChangeWanted, NodesLost, StopWanted, Submitted, Torn
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.failure import outcome
from heterps_hpc.launch.launcher import Capacity, LaunchRequest, Listener, Replanner
from heterps_hpc.launch.mpi import Flavour, flavour_of_ranks
from heterps_hpc.launch.progress import Progress
from heterps_hpc.launch.restart_policy import fits, restarts_left
from heterps_hpc.launch.slurm.job_state import JobState, state
from heterps_hpc.launch.slurm.script import one_component, render
from heterps_hpc.launch.slurm.slurm_cli import SlurmRefusal, call
from heterps_hpc.launch.stop_requests import StopRequested
from heterps_hpc.layout import Component
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

_REQUEUE_SECONDS = 180.0  # Slurm itself holds a requeued job back for two minutes
_SILENCE_SECONDS = 600.0
_RETRY_SECONDS = 5.0


def _refuse_ranks_without_mpi(site: Site) -> None:
    """Ranks use the interpreter that submits unless the site names theirs."""
    if site.python is None and not site.prefix and find_spec("mpi4py") is None:
        raise UserError(
            f"{sys.executable}: this environment has no MPI, so ranks could not start; name the "
            "Python of one that has in the cluster file (`site: {python: …}`), or a container "
            "(`site: {prefix: […]}`)"
        )


class SlurmLauncher:
    """Starts ranks by sbatch and srun."""

    name = "slurm"
    one_machine = False

    def __init__(self, flavour: Flavour | None = None, poll_seconds: float = 2.0) -> None:
        self._flavour = flavour
        self._poll_seconds = poll_seconds

    def check(self, request: LaunchRequest) -> None:
        """Refuse what the ranks would fail at after the job has waited in a queue."""
        _refuse_ranks_without_mpi(request.cluster.site)
        run = request.run.create()
        refuse_second_job(run)
        run.check_usable(request.layout.num_ranks)
        write_atomically(run.script, self.preview(request))
        _check(request)

    def start(self, request: LaunchRequest, listener: Listener = Listener()) -> ExitCode:  # noqa: B008
        """Submit one job for all ranks and follow it, through requeues, to its end."""
        job_id = self.queue(request)
        log.info("job %d: submitted %s", job_id, request.run.script)
        path = request.run.path
        continues = (
            f"job {job_id} continues: `heterps status {path}` shows it, `heterps cancel {path}` "
            "ends it"
        )
        try:
            return self.follow(request, listener)
        except StopRequested as stop:
            raise StopRequested(f"{stop}, but {continues}") from None
        except KeyboardInterrupt:  # in a notebook, where nobody takes over the signals
            raise UserError(f"stopped waiting; {continues}") from None

    def submit(self, request: LaunchRequest) -> str:
        """Submit only."""
        return f"job {self.queue(request)}: submitted {request.run.script}"

    def queue(self, request: LaunchRequest) -> int:
        """Write the script, have Slurm check it, queue it; the number of the job."""
        self.check(request)
        run = request.run
        answer = call("sbatch", "--parsable", str(run.script), cwd=run.path)
        job_id = int(answer.strip().split(";")[0])
        num_components = len(request.layout.components)
        events.record(run, Submitted(job_id=job_id, num_components=num_components))
        return job_id

    def preview(self, request: LaunchRequest) -> str:
        """The batch script."""
        return self.script(request)

    def script(self, request: LaunchRequest, made_before: int = 0) -> str:
        """The batch script; `made_before`: requeues that Slurm has counted for this job already."""
        left = restarts_left(events.read(request.run), request.job.launch.max_restarts)
        site = request.cluster.site
        return render(
            request.layout,
            request.cluster,
            request.job,
            request.run.path,
            flavour=self._flavour or flavour_of_ranks(site.python, site.srun_mpi),
            program=request.program,
            max_requeues=made_before + left,
        )

    def expected_start(self, request: LaunchRequest) -> datetime | None:
        """Slurm's estimate for a job of this size: it asks for the nodes, and does not queue."""
        with tempfile.NamedTemporaryFile("w", suffix=".sbatch") as file:
            file.write(self.preview(request))
            file.flush()
            answer = call("sbatch", "--test-only", file.name, with_errors=True)
        starts = re.findall(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", answer)
        return max((datetime.fromisoformat(start).astimezone() for start in starts), default=None)

    def capacity(self, cluster: Cluster, job: Job) -> Capacity:
        """Ranks that the nodes in working order of each pool's partition can hold."""
        capacity = {}
        for pool in cluster.pools:
            if pool.partition is None:
                continue
            up = call(
                "sinfo",
                "--noheader",
                f"--partition={pool.partition}",
                "--states=idle,mixed,allocated,completing,reserved",
                "--format=%D",
            )
            nodes = sum(int(word) for word in up.split() if word.isdigit())
            capacity[pool.name] = min(pool.rank_limit, nodes * pool.ranks_per_node)
        return capacity

    def node_capacity(self, pool: Pool) -> int:
        """Ranks that the layout puts on a full node."""
        return pool.ranks_per_node

    def cancel(self, run: RunDir, *, save: bool) -> str:
        """End the run's job: at once, or after a checkpoint and without a requeue."""
        job_id = job_of(run)
        now = state(job_id)
        if now is None or now.ended:
            raise UserError(f"{run.path}: job {job_id} has ended already; nothing to cancel")
        events.record(run, StopWanted(why="heterps cancel", job_id=job_id, save=save))
        running = not any(component.waiting for component in now.components)
        call("scancel", *(["--signal=USR1"] if save and running else []), str(job_id))
        return f"job {job_id}: {'saving' if save else 'cancelled'}"

    def follow(
        self,
        request: LaunchRequest,
        listener: Listener = Listener(),  # noqa: B008
        limit_seconds: float | None = None,
    ) -> ExitCode:
        """Wait for the run's job, through requeues, until it has ended for good.

        A requeued job that does not fit the nodes any more is ended, so that another plan can take
        its place.
        """
        run = request.run
        job_id = job_of(run)
        progress = Progress(run.metrics, listener.progress)
        give_up = None if limit_seconds is None else time.monotonic() + limit_seconds
        before: JobState | None = None
        cancelled: JobState | None = None  # torn, and Slurm has agreed to end it
        patience = _Patience()
        while True:
            now = patience.state(job_id)
            progress.poll()
            if now is None or now.ended:
                return final_code(request, now)
            if now != before:
                listener.state(f"job {job_id}: {now}")
            try:
                if now.torn:
                    if now != before:
                        events.record(run, Torn(job_id=job_id))
                    if now != cancelled:
                        call("scancel", str(job_id))
                        cancelled = now
                elif patience.ends_for(now) and not self._still_fits(request):
                    events.record(run, NodesLost(job_id=job_id))
                    call("scancel", str(job_id))
                elif _wants_change(now, before, listener.replanner):
                    _leave_layout(run, job_id)
            except UserError as error:
                # Slurm is silent, or the job has just ended: the next look tells
                log.warning("%s", error)
            before = now
            if give_up is not None and time.monotonic() > give_up:
                raise UserError(
                    f"job {job_id} is not at its end after {limit_seconds:.0f} s ({now}); it "
                    f"continues; `heterps status {run.path}` shows it, `heterps cancel "
                    f"{run.path}` ends it"
                )
            time.sleep(self._poll_seconds)

    def _still_fits(self, request: LaunchRequest) -> bool:
        return fits(request.layout, self.capacity(request.cluster, request.job))


def _wants_change(now: JobState, before: JobState | None, replanner: Replanner) -> bool:
    """Whether to continue on another layout: asked while ranks run, and at every requeue once."""
    if now.requeued:
        return (before is None or not before.requeued) and replanner.better() is not None
    return replanner.poll()


def _leave_layout(run: RunDir, job_id: int) -> None:
    """End the job, its ranks after a checkpoint: the restart policy submits another."""
    now = state(job_id)
    running = now is not None and not any(part.waiting for part in now.components)
    events.record(run, LayoutChangeWanted(running=running))
    call("scancel", *(["--signal=USR1"] if running else []), str(job_id))
    log.warning("job %d: a cheaper layout was found; ending it for that", job_id)


def final_code(request: LaunchRequest, now: JobState | None) -> ExitCode:
    """The outcome of an ended job: the script's own conclusion, else what Slurm reports."""
    run = request.run
    job = events.read(run).since(Submitted)
    start = job.newest_start
    end = start.last(Ended)
    if end is not None and not end.again:
        return events.exit_code(end)
    if now is None:
        return ExitCode.RANK_FAILED
    states = {component.state for component in now.components}
    lost = start.last(Torn) or start.last(NodesLost) or start.last(LayoutChangeWanted)
    if "CANCELLED" in states and lost is None:
        if not job.stop_wanted:  # by scancel: that is not to be undone by a restart
            events.record(run, StopWanted(why="scancel", save=False))
        return ExitCode.STOPPED
    status = max(component.exit_code for component in now.components)
    return outcome(job, request.layout.num_ranks, status, killed=lost is not None)


def job_of(run: RunDir) -> int:
    """The Slurm job last submitted for a run."""
    job = events.read(run).last(Submitted)
    if job is None:
        raise UserError(f"{run.path}: no Slurm job was submitted from this run directory")
    return job.job_id


def refuse_second_job(run: RunDir, own_job: int | None = None) -> None:
    """Two jobs in one run directory would overwrite each other's checkpoints."""
    job = events.read(run).last(Submitted)
    now = None if job is None or job.job_id == own_job else state(job.job_id)
    if job is not None and now is not None and not now.ended:
        raise UserError(
            f"{run.path}: job {job.job_id} of this run is still there ({now}); wait for it, "
            "`heterps cancel` it, or choose another directory with --run-dir"
        )


def _check(request: LaunchRequest) -> None:
    """`sbatch --test-only`; a refusal names the components concerned."""
    try:
        call("sbatch", "--test-only", str(request.run.script))
    except SlurmRefusal as refusal:
        refused = _refused_components(request)
        if len(refused) != 1 and len({reason for _, _, reason in refused}) <= 1:
            raise UserError(
                f"Slurm refuses the job: {refusal.reason}; `heterps doctor --need slurm` looks "
                "further"
            ) from None
        where = "; ".join(
            f"component {number} ({part.num_ranks} ranks on {part.num_nodes} nodes of partition "
            f"{part.partition!r}): {reason}"
            for number, part, reason in refused
        )
        raise UserError(
            f"Slurm refuses the job: {where}; change the limits of these pools in the cluster "
            "file and plan again (`sinfo` shows what there is)"
        ) from None


def _refused_components(request: LaunchRequest) -> list[tuple[int, Component, str]]:
    """Ask about each component alone: Slurm does not report which part of a job it refuses."""
    refused = []
    for number, component in enumerate(request.layout.components):
        with tempfile.NamedTemporaryFile("w", suffix=".sbatch") as file:
            file.write(one_component(component, request.cluster, request.job))
            file.flush()
            try:
                call("sbatch", "--test-only", file.name)
            except SlurmRefusal as refusal:
                refused.append((number, component, refusal.reason))
    return refused


class _Patience:
    """How long a silent controller is tolerated, and a requeued job that does not start."""

    def __init__(self) -> None:
        self._silent_since: float | None = None
        self._queued_since: float | None = None

    def state(self, job_id: int) -> JobState | None:
        """The state of a job; a controller that restarts must not end hours of waiting."""
        while True:
            try:
                now = state(job_id)
            except UserError as error:
                self._silent_since = self._silent_since or time.monotonic()
                if time.monotonic() - self._silent_since > _SILENCE_SECONDS:
                    raise
                log.warning("%s; asking again", error)
                time.sleep(_RETRY_SECONDS)
            else:
                self._silent_since = None
                return now

    def ends_for(self, now: JobState) -> bool:
        """Whether a requeued job has waited long enough; then it may wait as long again."""
        waits = now.requeued
        if not waits or self._queued_since is None:
            self._queued_since = time.monotonic() if waits else None
            return False
        if time.monotonic() - self._queued_since < _REQUEUE_SECONDS:
            return False
        self._queued_since = time.monotonic()
        return True
