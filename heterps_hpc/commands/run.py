"""`heterps run`: all steps of a job, from the job file to the report."""

from __future__ import annotations

from pathlib import Path

from heterps_hpc.commands import plan as planning
from heterps_hpc.commands.launch import start
from heterps_hpc.commands.measure import measure
from heterps_hpc.commands.prepare import check_first_weights, freeze, ready_data
from heterps_hpc.commands.report import report
from heterps_hpc.commands.tasks import task
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, launcher_for
from heterps_hpc.launch.slurm.partitions import check_partitions
from heterps_hpc.launch.slurm.slurm_cli import check_slurm_answers
from heterps_hpc.layout import Layout
from heterps_hpc.profile import Profile
from heterps_hpc.rundir import RunDir


def run(
    source: Path | Job,
    run_dir: Path | None,
    on: str,
    *,
    resume: bool = False,
    wait: bool = True,
    profile: Path | None = None,
    measure_again: bool = False,
) -> ExitCode:
    """data → measure → plan → launch → report; steps whose result is there are not repeated.

    With a profile of an earlier measurement, nothing is measured.
    """
    launcher = launcher_for(on)
    if on == "slurm":
        check_slurm_answers()
    with freeze(source, run_dir, resume=resume) as (job, cluster, directory):
        if on == "slurm":
            check_partitions(cluster)
        with task(directory, "data"):
            ready_data(job)
        check_first_weights(job, directory)
        if resume and directory.layout.exists():
            layout = Layout.load(directory.layout)
        else:
            if not (resume and directory.profile.exists()):
                if profile is None:
                    found = measure(job, cluster, directory, launcher, again=measure_again)
                else:
                    found = Profile.load(profile)
                found.save(directory.profile)
            layout = planning.plan(job, cluster, directory, on=launcher, try_on=launcher)
        code = start(launcher, LaunchRequest(directory, layout, job, cluster), wait=wait)
    if code == ExitCode.DONE and wait:
        write_report(directory)
    return code


def write_report(run: RunDir) -> None:
    """Whoever runs a job again that is done would be refused: all it lacks is its report."""
    try:
        report(run)
    except OSError as error:
        if error.filename is None:  # of a closed terminal, say
            raise
        raise UserError(
            f"trained to the end, but {error.filename} is not written: {error.strerror}; put that "
            f"right, and write it with `heterps report {run.path}`"
        ) from None
