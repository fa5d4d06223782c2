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


def run(
    job_file: Path,
    run_dir: Path | None,
    on: str,
    *,
    resume: bool = False,
    wait: bool = True,
    profile: Path | None = None,
) -> ExitCode:
    """data → measure → plan → launch → report; steps whose result is there are not repeated.

    With a profile of an earlier measurement, nothing is measured.
    """
    launcher = launcher_for(on)
    with freeze(job_file, run_dir, resume=resume) as (job, cluster, directory):
        ready_data(job)
        if resume and directory.layout.exists():
            layout = Layout.load(directory.layout)
        else:
            ready_profile(job, cluster, directory, launcher, profile)
            layout = planning.plan(job, cluster, directory)
        code = start(launcher, LaunchRequest(directory, layout, job, cluster), wait=wait)
    if code == ExitCode.DONE and wait:
        report(directory)
    return code


def ready_profile(
    job: Job, cluster: Cluster, run: RunDir, launcher: Launcher, given: Path | None
) -> None:
    """Take the profile that was given, or else measure."""
    from heterps_hpc.commands.measure import measure
    from heterps_hpc.profile import Profile

    found = measure(job, cluster, run, launcher) if given is None else Profile.load(given)
    found.save(run.profile)
