"""Submit: ask Slurm first, refuse in its own words, remember the job in the run directory."""

from __future__ import annotations

import tempfile
from pathlib import Path

from heterps_hpc import history
from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.launch.mpi import Flavour, find_mpi
from heterps_hpc.launch.rank_command import RANK_PROGRAM
from heterps_hpc.launch.slurm.job_state import state
from heterps_hpc.launch.slurm.script import one_component, render
from heterps_hpc.launch.slurm.slurm_cli import SlurmRefusal, call
from heterps_hpc.layout import Component, Layout
from heterps_hpc.rundir import RunDir


def submit(
    run_dir: Path | str,
    layout: Layout,
    cluster: Cluster,
    job: Job,
    *,
    flavour: Flavour | None = None,
    python: str | None = None,
    program: str = RANK_PROGRAM,
) -> int:
    """Write the script, have Slurm check it, queue it; the number of the job."""
    run = RunDir(run_dir).create()
    refuse_second_job(run)
    script = render(
        layout,
        cluster,
        job,
        run.path,
        flavour=flavour or find_mpi().flavour,
        python=python,
        program=program,
    )
    write_atomically(run.script, script)
    check(run.script, layout, cluster, job)
    job_id = _queue(run)
    history.record(run, "submit", job_id=job_id, num_components=len(layout.components))
    return job_id


def check(script: Path, layout: Layout, cluster: Cluster, job: Job) -> None:
    """`sbatch --test-only`; a refusal names the components concerned."""
    try:
        call("sbatch", "--test-only", str(script))
    except SlurmRefusal as refusal:
        guilty = _refused_components(layout, cluster, job)
        if len(guilty) != 1 and len({words for _, _, words in guilty}) <= 1:
            raise UserError(
                f"Slurm refuses the job: {refusal.words}; `heterps doctor --need slurm` looks "
                "further"
            ) from None
        where = "; ".join(
            f"component {number} ({part.num_ranks} ranks on {part.num_nodes} nodes of partition "
            f"{part.partition!r}): {words}"
            for number, part, words in guilty
        )
        raise UserError(
            f"Slurm refuses the job: {where}; change the limits of these pools in the cluster "
            "file and plan again (`sinfo` shows what there is)"
        ) from None


def resubmit(run: RunDir) -> int:
    """Queue the same script again, after Slurm ended a job that it could not requeue whole."""
    job_id = _queue(run)
    history.record(run, "resubmit", job_id=job_id)
    return job_id


def job_of(run: RunDir) -> int:
    """The Slurm job last submitted for a run."""
    job_id = _last_job(run)
    if job_id is None:
        raise UserError(f"{run.path}: no Slurm job was submitted from this run directory")
    return job_id


def _queue(run: RunDir) -> int:
    answer = call("sbatch", "--parsable", str(run.script), cwd=run.path)
    return int(answer.strip().split(";")[0])


def _last_job(run: RunDir) -> int | None:
    events = [e for e in history.read(run) if e["event"] in ("submit", "resubmit")]
    return int(events[-1]["job_id"]) if events else None


def refuse_second_job(run: RunDir) -> None:
    """Two jobs in one run directory would overwrite each other's checkpoints."""
    job_id = _last_job(run)
    now = None if job_id is None else state(job_id)
    if now is not None and not now.ended:
        raise UserError(
            f"{run.path}: job {job_id} of this run is still there ({now}); wait for it, "
            "`heterps cancel` it, or choose another directory with --run-dir"
        )


def _refused_components(
    layout: Layout, cluster: Cluster, job: Job
) -> list[tuple[int, Component, str]]:
    """Ask about each component alone: Slurm does not say which part of a job it dislikes."""
    guilty = []
    for number, component in enumerate(layout.components):
        with tempfile.NamedTemporaryFile("w", suffix=".sbatch") as file:
            file.write(one_component(component, cluster, job))
            file.flush()
            try:
                call("sbatch", "--test-only", file.name)
            except SlurmRefusal as refusal:
                guilty.append((number, component, refusal.words))
    return guilty
