"""All steps of a job, from the job file to the report."""

from __future__ import annotations

from pathlib import Path

from heterps_hpc.cluster import Cluster
from heterps_hpc.commands import plan as planning
from heterps_hpc.commands.prepare import freeze, ready_data
from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout
from heterps_hpc.profile import Profile
from heterps_hpc.rundir import RunDir


def run(job_file: Path, run_dir: Path | None, on: str, resume: bool) -> ExitCode:
    """data → measure → plan → launch → report; steps whose result is there are not repeated."""
    job, cluster, directory = freeze(job_file, run_dir, resume=resume)
    with directory.hold():
        ready_data(job)
        layout = ready_layout(job, cluster, directory, on, keep=resume)
        code = launch(job, cluster, layout, directory, on, resume=resume)
    if code == ExitCode.DONE:
        report(directory)
    return code


def ready_layout(job: Job, cluster: Cluster, directory: RunDir, on: str, *, keep: bool) -> Layout:
    """The layout of an earlier start if it is to be kept, else measure and plan."""
    if keep and directory.layout.exists():
        return Layout.load(directory.layout)
    ready_profile(job, cluster, directory, on)
    return planning.plan(job, cluster, directory)


def ready_profile(job: Job, cluster: Cluster, directory: RunDir, on: str) -> Profile:
    """Measure every pool."""
    from heterps_hpc.commands.measure import measure

    profile = measure(job, cluster, directory, on=on)
    profile.save(directory.profile)
    return profile


def launch(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    directory: RunDir,
    on: str,
    *,
    resume: bool,
    wait: bool = True,
) -> ExitCode:
    """Start the ranks, here or on Slurm, and wait for them (a Slurm job may go on alone)."""
    from heterps_hpc.commands.launch import launch_local, launch_slurm
    from heterps_hpc.layout_checks import check_cluster

    check_cluster(layout, cluster)
    if on == "slurm":
        return launch_slurm(job, cluster, layout, directory, resume=resume, wait=wait)
    return launch_local(job, cluster, layout, directory, resume=resume)


def report(directory: RunDir) -> None:
    """Write the page for people and say where it is."""
    from rich.console import Console

    from heterps_hpc.report import write_report

    write_report(directory, Console())
