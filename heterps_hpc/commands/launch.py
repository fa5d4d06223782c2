"""The verbs around a running job: launch, its preview, status, cancel, doctor."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Any, cast, get_args

from heterps_hpc import history
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)


def launch_local(
    job: Job, cluster: Cluster, layout: Layout, directory: RunDir, *, resume: bool = False
) -> ExitCode:
    """Run the ranks on this machine and wait for them, with live progress."""
    from heterps_hpc.commands.plan import plan
    from heterps_hpc.launch import local
    from heterps_hpc.launch.restart_policy import local_room, run_with_restarts

    refuse_mixing(directory, resume)
    history.record(directory, "launch", launcher="mpirun", num_ranks=layout.num_ranks)
    cores = len(os.sched_getaffinity(0))
    code = run_with_restarts(
        directory,
        cluster,
        layout,
        lambda now: local.run(directory.path, now, job, on_line=_relay, on_progress=tell_progress),
        max_restarts=job.launch.max_restarts,
        room=lambda: local_room(cluster, cores, oversubscribe=job.launch.oversubscribe),
        plan=lambda smaller: plan(job, smaller, directory),
    )
    _conclude(directory, code)
    return code


def launch_slurm(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    directory: RunDir,
    *,
    resume: bool = False,
    wait: bool = True,
) -> ExitCode:
    """Submit one job for all ranks and, unless told otherwise, follow it to its end.

    Slurm requeues it as often as the job allows; when nodes are gone for good, it is planned anew
    for those that are left.
    """
    from heterps_hpc.commands.plan import plan
    from heterps_hpc.launch import slurm
    from heterps_hpc.launch.restart_policy import fits, slurm_room, smaller

    refuse_mixing(directory, resume)
    if not wait:
        job_id = slurm.submit(directory.path, layout, cluster, job)
        log.info("job %d: submitted %s", job_id, directory.script)
        return ExitCode.DONE
    code = _submit_and_follow(job, cluster, layout, directory)
    for _ in range(job.launch.max_restarts):
        if code != ExitCode.RANK_FAILED or fits(layout, room := slurm_room(cluster)):
            break
        layout = plan(job, smaller(cluster, room), directory)
        history.record(directory, "planned_again", room=dict(room))
        code = _submit_and_follow(job, cluster, layout, directory)
    _conclude(directory, code)
    return code


def _submit_and_follow(job: Job, cluster: Cluster, layout: Layout, directory: RunDir) -> ExitCode:
    from heterps_hpc.launch import slurm
    from heterps_hpc.launch.restart_policy import fits, slurm_room

    job_id = slurm.submit(directory.path, layout, cluster, job)
    log.info("job %d: submitted %s", job_id, directory.script)
    try:
        return slurm.wait(
            directory.path,
            on_progress=tell_progress,
            on_state=lambda state: log.info("job %d: %s", job_id, state),
            fits=lambda: fits(layout, slurm_room(cluster)),
        )
    except KeyboardInterrupt:
        raise UserError(
            f"stopped waiting; job {job_id} goes on: `heterps status {directory.path}` shows it, "
            f"`heterps cancel {directory.path}` ends it"
        ) from None


def preview(job: Job, cluster: Cluster, layout: Layout, directory: RunDir, on: str) -> str:
    """What a launch would start: the batch script, or the command of mpirun."""
    from heterps_hpc.launch.local import mpirun_command
    from heterps_hpc.launch.mpi import find_mpi
    from heterps_hpc.launch.slurm import render

    if on == "slurm":
        return render(layout, cluster, job, directory.path, flavour=find_mpi().flavour)
    command = mpirun_command(
        layout,
        directory.path,
        find_mpi(),
        python=sys.executable,
        oversubscribe=job.launch.oversubscribe,
        bind=job.launch.bind,
        as_root=os.geteuid() == 0,
    )
    return shlex.join(command)


def doctor(need: str) -> ExitCode:
    """Say what works on this machine."""
    from heterps_hpc.launch.doctor import Need, report

    if need not in get_args(Need):
        raise UserError(f"--need is {need!r}; valid: {', '.join(get_args(Need))}")
    return report(cast(Need, need))


def status(run_dir: Path) -> None:
    """Say where a run stands."""
    from heterps_hpc.launch.status import show

    show(run_dir)


def cancel(run_dir: Path, *, save: bool) -> None:
    """End a run's Slurm job."""
    from heterps_hpc.launch import slurm

    slurm.cancel(run_dir, save=save)
    log.info("job %d: %s", slurm.job_of(RunDir(run_dir)), "saving" if save else "cancelled")


def refuse_mixing(directory: RunDir, resume: bool) -> None:
    """A run goes on from the checkpoints that it finds; that must be what the user wants."""
    found = sorted(path.name for path in directory.checkpoints.glob("[0-9]*"))
    if found and not resume:
        raise UserError(
            f"{directory.path} has a checkpoint of step {int(found[-1])}; go on from it with "
            "--resume, or start afresh in another directory with --run-dir"
        )


def tell_progress(metrics: dict[str, Any]) -> None:
    """One line of progress for people."""
    if "step" not in metrics:
        return
    parts = [f"step {metrics['step']:>6}"]
    for name, form in (("loss", ".4f"), ("auc", ".4f"), ("samples_per_second", ",.0f")):
        if isinstance(metrics.get(name), int | float):
            parts.append(f"{name.replace('_per_', '/')} {metrics[name]:{form}}")
    log.info("%s  %s", metrics.get("kind", "train"), "  ".join(parts))


def _relay(line: str) -> None:
    sys.stderr.write(line + "\n")


def _conclude(directory: RunDir, code: ExitCode) -> None:
    from heterps_hpc.launch.failure import explain

    reason = explain(directory, code)
    if code == ExitCode.STOPPED:
        log.warning("stopped; go on with: heterps launch --resume %s", directory.path)
    elif code != ExitCode.DONE:
        log.error("%s", reason or f"the run failed; see {directory.logs}")
