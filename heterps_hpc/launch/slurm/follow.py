"""Follow and end a submitted job: live progress, one exit code, no component left behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from heterps_hpc import history
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode, outcome
from heterps_hpc.launch.progress import OnProgress, Progress
from heterps_hpc.launch.slurm.job_state import JobState, state
from heterps_hpc.launch.slurm.slurm_cli import call
from heterps_hpc.launch.slurm.submit import job_of, resubmit
from heterps_hpc.launch.slurm.verdict import goes_on
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

_REQUEUE_SECONDS = 180.0  # Slurm itself holds a requeued job back for two minutes
_SILENCE_SECONDS = 600.0
_RETRY_SECONDS = 5.0

OnState = Callable[[JobState], None]


def wait(
    run_dir: Path | str,
    *,
    on_progress: OnProgress | None = None,
    on_state: OnState | None = None,
    fits: Callable[[], bool] | None = None,
    poll_seconds: float = 2.0,
    limit_seconds: float | None = None,
) -> ExitCode:
    """Wait for the run's job, through requeues, until it has ended for good.

    `fits` says whether the cluster still has the nodes that the job needs. A requeued job that
    does not fit any more is ended, so that another plan can take its place.
    """
    run = RunDir(run_dir)
    job_id = job_of(run)
    progress = Progress(run.metrics, on_progress)
    give_up = None if limit_seconds is None else time.monotonic() + limit_seconds
    before: JobState | None = None
    patience = _Patience()
    while True:
        now = patience.state(job_id)
        progress.poll()
        if now is None or now.ended:
            if not resumes_torn(run) or (fits is not None and not fits()):
                return final_code(run, now)
            job_id = resubmit(run)
            log.warning("the job lost its first node; it goes on as job %d", job_id)
            continue
        if on_state is not None and now != before:
            on_state(now)
        if now.torn:
            history.record(run, "torn", job_id=job_id)
            call("scancel", str(job_id))
        elif patience.ends_for(now) and fits is not None and not fits():
            history.record(run, "lost_nodes", job_id=job_id)
            call("scancel", str(job_id))
        before = now
        if give_up is not None and time.monotonic() > give_up:
            raise UserError(
                f"job {job_id} is not at its end after {limit_seconds:.0f} s ({now}); it goes on; "
                f"`heterps status {run.path}` shows it, `heterps cancel {run.path}` ends it"
            )
        time.sleep(poll_seconds)


class _Patience:
    """How long we bear a silent controller, and a requeued job that does not start."""

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
        waits = all(part.waiting and part.restarts for part in now.components)
        if not waits or self._queued_since is None:
            self._queued_since = time.monotonic() if waits else None
            return False
        if time.monotonic() - self._queued_since < _REQUEUE_SECONDS:
            return False
        self._queued_since = time.monotonic()
        return True


def cancel(run_dir: Path | str, *, save: bool = False) -> None:
    """End the run's job: at once, or after a checkpoint and without a requeue."""
    run = RunDir(run_dir)
    job_id = job_of(run)
    now = state(job_id)
    if now is None or now.ended:
        raise UserError(f"{run.path}: job {job_id} has ended already; nothing to cancel")
    history.record(run, "stop_wanted", job_id=job_id, save=save)
    running = not any(component.waiting for component in now.components)
    if save and running:
        call("scancel", "--signal=USR1", str(job_id))
    else:
        call("scancel", str(job_id))


def resumes_torn(run: RunDir) -> bool:
    """Whether an ended job was torn, so that Slurm could not requeue it, and may be tried again."""
    events = history.read(run)
    torn = history.last(events, "torn")
    if torn is None or torn["job_id"] != job_of(run):
        return False
    stop_wanted = history.last(history.since_last(events, "start"), "stop_wanted") is not None
    max_restarts = Job.parse_saved(run.job).launch.max_restarts
    return goes_on(ExitCode.RANK_FAILED, history.restarts(events), max_restarts, stop_wanted)


def final_code(run: RunDir, now: JobState | None) -> ExitCode:
    """The outcome of an ended job: the script's own conclusion, else what Slurm says."""
    events = history.since_last(history.read(run), "submit")
    this_start = history.since_last(events, "start")
    end = history.last(this_start, "end")
    if end is not None and not end.get("again", False):
        return ExitCode(int(end["code"]))
    if now is None:
        return ExitCode.RANK_FAILED
    states = {component.state for component in now.components}
    if states == {"COMPLETED"}:
        return ExitCode.DONE
    lost = any(event["event"] in ("torn", "lost_nodes") for event in this_start)
    if "CANCELLED" in states and not lost:
        return ExitCode.STOPPED
    noted = [event["code"] for event in this_start if event["event"] == "rank_end"]
    return outcome(max(component.exit_code for component in now.components) or 1, noted)
