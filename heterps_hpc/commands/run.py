"""`heterps run`: all steps of a job, from the job file to the report."""

from __future__ import annotations

from pathlib import Path

from heterps_hpc.cluster import Cluster
from heterps_hpc.commands import plan as planning
from heterps_hpc.commands.launch import start
from heterps_hpc.commands.prepare import freeze, ready_data
from heterps_hpc.commands.report import report
from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import Launcher, LaunchRequest, launcher_for
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir


def run(job_file: Path, run_dir: Path | None, on: str, resume: bool) -> ExitCode:
    """data → measure → plan → launch → report; steps whose result is there are not repeated."""
    launcher = launcher_for(on)
    with freeze(job_file, run_dir, resume=resume) as (job, cluster, directory):
        ready_data(job)
        layout = ready_layout(job, cluster, directory, launcher, keep=resume)
        code = start(launcher, LaunchRequest(directory, layout, job, cluster))
    if code == ExitCode.DONE:
        report(directory)
    return code


def ready_layout(
    job: Job, cluster: Cluster, run: RunDir, launcher: Launcher, *, keep: bool
) -> Layout:
    """The layout of an earlier start if it is to be kept, else measure and plan."""
    from heterps_hpc.commands.measure import measure

    if keep and run.layout.exists():
        return Layout.load(run.layout)
    measure(job, cluster, run, launcher).save(run.profile)
    return planning.plan(job, cluster, run)
