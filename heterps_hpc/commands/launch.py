"""`heterps launch`: start the ranks of a planned run, and wait for its end."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from heterps_hpc import events
from heterps_hpc import format as fmt
from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.prepare import (
    check_first_weights,
    held_run,
    ready_data,
    refuse_mixing,
    refuse_other_job,
)
from heterps_hpc.config import Job
from heterps_hpc.events import Launched
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import Launcher, LaunchRequest, Listener, launcher_for
from heterps_hpc.launch.launcher_output import is_for_people
from heterps_hpc.launch.live_line import run_line
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)


def launch_in_allocation(run_dir: Path, *, resume: bool) -> ExitCode:
    """Start what a run directory describes in the Slurm job that we are in."""
    from heterps_hpc.launch.slurm.allocation import is_requeued, job_in, run_in_allocation

    own_job = job_in(os.environ)
    with held_run(run_dir, own_job) as (job, cluster, run):
        request = _request(job, cluster, run, resume=resume or is_requeued(os.environ))
        code = run_in_allocation(request, os.environ)
        _report_end(request, code)
        return code


def launch(run_dir: Path, on: str, *, resume: bool, wait: bool) -> ExitCode:
    """Start what a run directory describes."""
    launcher = launcher_for(on)
    with held_run(run_dir) as (job, cluster, run):
        return start(launcher, _request(job, cluster, run, resume=resume), wait=wait)


def _request(job: Job, cluster: Cluster, run: RunDir, *, resume: bool) -> LaunchRequest:
    """What to start; what its ranks would refuse is refused before they wait in a queue."""
    refuse_mixing(run, resume)
    layout = Layout.load(run.layout)
    ready_data(job)
    check_first_weights(job, run)
    refuse_other_job(run, job, cluster, keeps_layout=True)
    return LaunchRequest(run, layout, job, cluster)


def preview(run_dir: Path, on: str) -> str:
    """What a launch would start: the batch script, or the command of mpirun."""
    from heterps_hpc.commands.prepare import thaw

    job, cluster, run = thaw(run_dir)
    return launcher_for(on).preview(LaunchRequest(run, Layout.load(run.layout), job, cluster))


def start(launcher: Launcher, request: LaunchRequest, *, wait: bool = True) -> ExitCode:
    """Start the ranks, again after failures as often as the job allows; report how it ended."""
    from heterps_hpc.commands.plan import plan
    from heterps_hpc.commands.replan import replanner_of
    from heterps_hpc.launch.restart_policy import run_with_restarts
    from heterps_hpc.layout_checks import check_cluster, check_job

    check_cluster(request.layout, request.cluster)
    check_job(request.layout, request.job)
    run, num_ranks = request.run, request.layout.num_ranks
    launcher.check(request)  # a run that is refused has not been launched
    ranks = request.layout.ranks_by_pool
    events.record(run, Launched(on=launcher.name, num_ranks=num_ranks, ranks=ranks))
    if not wait:
        log.info("%s", launcher.submit(request))
        return ExitCode.DONE
    line = run_line(run)

    def plan_again(smaller: Cluster) -> Layout:
        with line.paused():
            return plan(request.job, smaller, run)

    listener = Listener(
        line=_print_line,
        progress=_print_evaluation,
        state=log.info,
        replanner=replanner_of(request),
    )
    with line:
        code = run_with_restarts(launcher, request, listener, plan=plan_again)
    _report_end(request, code)
    return code


def _print_evaluation(metrics: dict[str, Any]) -> None:
    """Scores on test data stay on the screen; the progress of training is a line that changes."""
    if metrics.get("kind") != "evaluation":
        return
    names = {"auc": "AUC", "log_loss": "log loss"}
    scores = [f"{text} {metrics[name]:.4f}" for name, text in names.items() if name in metrics]
    log.info("%s", " · ".join([f"evaluation after step {fmt.count(metrics['step'])}", *scores]))


def _print_line(line: str) -> None:
    if is_for_people(line):
        sys.stderr.write(line + "\n")


def _report_end(request: LaunchRequest, code: ExitCode) -> None:
    from heterps_hpc.launch.failure import explain
    from heterps_hpc.launch.status import resume_command

    run = request.run
    if code == ExitCode.STOPPED:
        saved = run.saved_steps()
        where = f"at the checkpoint of step {saved[-1]}" if saved else "before any checkpoint"
        log.warning("stopped %s; continue with: %s", where, resume_command(run))
    elif code != ExitCode.DONE:
        log.error("%s", explain(run, code) or f"the run failed; see {run.logs}")
