"""`heterps predict`: scores for a data set from a run's checkpoint."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from heterps_hpc.checkpoint import Checkpoint, newest
from heterps_hpc.checkpoint.store import directory_of
from heterps_hpc.commands.prepare import thaw
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, Listener, launcher_for
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

PROGRAM = "heterps_hpc.runtime.predict"


def predict(run_dir: Path, data: Path, out: Path, step: int | None, on: str) -> ExitCode:
    """Start the run's own layout as a scoring job and move its scores to `out`."""
    launcher = launcher_for(on)
    job, cluster, run = thaw(run_dir)
    if out.exists():
        raise UserError(f"{out}: exists already; choose another file with --out")
    Dataset.open(data)
    checkpoint = _checkpoint(run, step)
    scoring_run = run.prediction.create()
    scoring = job.model_copy(
        update={
            "data": job.data.model_copy(update={"test": data.resolve()}),
            "train": job.train.model_copy(update={"init_from": checkpoint.path}),
            "launch": job.launch.model_copy(update={"max_restarts": 0}),
        }
    )
    layout = Layout.load(run.layout)
    with scoring_run.hold():
        scoring.save(scoring_run.job)
        cluster.save(scoring_run.cluster)
        layout.save(scoring_run.layout)
        scoring_run.scores.unlink(missing_ok=True)
        request = LaunchRequest(scoring_run, layout, scoring, cluster, PROGRAM)
        code = launcher.start(request, Listener(line=log.info))
    if code == ExitCode.DONE:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(scoring_run.scores, out)
        log.info("scores of step %d in %s", checkpoint.step, out)
    return code


def _checkpoint(run: RunDir, step: int | None) -> Checkpoint:
    if step is not None:
        return Checkpoint.open(directory_of(run.checkpoints, step))
    found = newest(run.checkpoints)
    if found is None:
        raise UserError(f"{run.path} has no checkpoint; train with `checkpoint: {{at_end: true}}`")
    return found
