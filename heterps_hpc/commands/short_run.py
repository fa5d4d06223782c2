"""A short run of some rank program, in a folder of its own, that leaves one file: its result."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from heterps_hpc import events
from heterps_hpc.config import Job
from heterps_hpc.errors import StartFailed
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.failure import explain
from heterps_hpc.launch.launcher import Launcher, LaunchRequest, Listener
from heterps_hpc.launch.launcher_output import is_for_people
from heterps_hpc.launch.stop_requests import StopRequested
from heterps_hpc.layout import Layout
from heterps_hpc.run_lock import RunLock

log = logging.getLogger(__name__)


def start_short_run(
    launcher: Launcher,
    request: LaunchRequest,
    output: Path,
    what: str,
    started: Layout | None = None,
) -> None:
    """Start ranks that read the request's layout and write `output`; errors name `what`.

    `started`: what is really started, if that is more than the layout.
    """
    run, started = request.run, started or request.layout
    with RunLock(run):
        request.job.save(run.job)
        request.cluster.save(run.cluster)
        request.layout.save(run.layout)
        output.unlink(missing_ok=True)
        ranks = started.ranks_by_pool
        launched = events.Launched(on=launcher.name, num_ranks=started.num_ranks, ranks=ranks)
        events.record(run, launched)
        code = launcher.start(
            replace(request, layout=started, saves=False), Listener(line=_log_line, state=log.info)
        )
    stop = events.read(run).since(events.Launched).last(events.StopWanted)  # not an earlier one
    if stop is not None:
        raise StopRequested(f"stopped ({stop.why}) while {what}")
    if code != ExitCode.DONE or not output.exists():
        reason = (explain(run, code) or "nothing was written").splitlines()[0]
        code = ExitCode.RANK_FAILED if code == ExitCode.DONE else code
        raise StartFailed(f"{what} failed: {reason}; see {run.logs}", code)


def _log_line(line: str) -> None:
    if is_for_people(line):
        log.info("%s", line)


def without_extras(job: Job, *, time_limit_minutes: float) -> Job:
    """The same training, but nothing besides its steps: no lines, evaluations or restarts."""
    train = job.train.model_copy(
        update={
            "metrics_every": 10**9,
            "evaluate_every": None,
            "evaluate_at_end": False,
            "init_from": None,
        }
    )
    limits = {"max_restarts": 0, "time_limit_minutes": time_limit_minutes}
    launch = job.launch.model_copy(update=limits)
    data = job.data.model_copy(update={"test": None})
    return job.model_copy(update={"train": train, "launch": launch, "data": data})
