"""`heterps predict`: scores for a data set from a run's checkpoint."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from heterps_hpc.checkpoint import Checkpoint, newest
from heterps_hpc.checkpoint.store import directory_of
from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.prepare import thaw
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

PROGRAM = "heterps_hpc.runtime.predict"


def predict(run: Path, data: Path, out: Path, step: int | None, on: str) -> ExitCode:
    """Start the run's own layout as a scoring job and move its scores to `out`."""
    job, cluster, directory = thaw(run)
    if out.exists():
        raise UserError(f"{out}: exists already; choose another file with --out")
    Dataset.open(data)
    checkpoint = _checkpoint(directory, step)
    folder = RunDir(directory.path / "predict").create()
    scoring = job.model_copy(
        update={
            "data": job.data.model_copy(update={"test": data.resolve()}),
            "train": job.train.model_copy(update={"init_from": checkpoint.path}),
            "launch": job.launch.model_copy(update={"max_restarts": 0}),
        }
    )
    scoring.save(folder.job)
    cluster.save(folder.cluster)
    layout = Layout.load(directory.layout)
    layout.save(folder.layout)
    scores = folder.path / "scores.h5"
    scores.unlink(missing_ok=True)
    with folder.hold():
        code = _start(on, folder, layout, cluster, scoring)
    if code == ExitCode.DONE:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(scores, out)
        log.info("scores of step %d in %s", checkpoint.step, out)
    return code


def _start(on: str, folder: RunDir, layout: Layout, cluster: Cluster, job: Job) -> ExitCode:
    if on == "slurm":
        from heterps_hpc.launch import slurm

        slurm.submit(folder.path, layout, cluster, job, program=PROGRAM)
        return slurm.wait(folder.path)
    from heterps_hpc.launch import local

    return local.run(folder.path, layout, job, program=PROGRAM, on_line=log.info)


def _checkpoint(directory: RunDir, step: int | None) -> Checkpoint:
    if step is not None:
        return Checkpoint.open(directory_of(directory.checkpoints, step))
    found = newest(directory.checkpoints)
    if found is None:
        raise UserError(
            f"{directory.path} has no checkpoint; train with `checkpoint: {{at_end: true}}`"
        )
    return found
