"""`heterps predict`: scores for rows from a run's checkpoint, by its ranks or in this process."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from heterps_hpc import format as fmt
from heterps_hpc.checkpoint import Checkpoint, newest
from heterps_hpc.checkpoint.store import directory_of
from heterps_hpc.commands.prepare import thaw
from heterps_hpc.commands.short_run import start_short_run
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, launcher_for
from heterps_hpc.launch.live_line import LineText, LiveLine
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from heterps_hpc.serving.score_file import Columns, ScoreFile

log = logging.getLogger(__name__)

PROGRAM = "heterps_hpc.runtime.predict"


def predict(
    run_dir: Path, data: Path, out: Path, step: int | None, on: str | None, delimiter: str = ","
) -> ExitCode:
    """By ranks, or in this process: files always, data sets `--on here` or without MPI."""
    if on is None:
        on = "here" if find_spec("mpi4py") is None else "local"
    if not data.is_file() and on != "here":
        return predict_by_ranks(run_dir, data, out, step, on)
    if on == "slurm":
        raise UserError(
            f"{data}: a file is scored in this process, not on Slurm; drop --on, or make a data "
            "set of it with `heterps prepare`"
        )
    predict_here(run_dir, data, out, step, delimiter)
    return ExitCode.DONE


def predict_by_ranks(run_dir: Path, data: Path, out: Path, step: int | None, on: str) -> ExitCode:
    """Start the run's own layout as a scoring job and write its scores to `out`."""
    launcher = launcher_for(on)
    job, cluster, run = thaw(run_dir)
    dataset = Dataset.open(data)
    checkpoint = _checkpoint(run, step)
    with ScoreFile.create(out) as file:
        scoring_run = run.prediction.create("score in this process: --on here")
        scoring = job.model_copy(
            update={
                "data": job.data.model_copy(update={"test": Path(os.path.realpath(data))}),
                "train": job.train.model_copy(update={"init_from": checkpoint.path}),
                "launch": job.launch.model_copy(update={"max_restarts": 0}),
            }
        )
        request = LaunchRequest(scoring_run, Layout.load(run.layout), scoring, cluster, PROGRAM)
        start_short_run(launcher, request, scoring_run.scores, "scoring")
        with h5py.File(scoring_run.scores) as scores:
            columns = {name: scores[name][:] for name in scores}
        file.append(_with_ids(columns, dataset.ids()))
    scoring_run.scores.unlink()
    log.info("scores of step %d in %s", checkpoint.step, out)
    return ExitCode.DONE


def predict_here(run_dir: Path, data: Path, out: Path, step: int | None, delimiter: str) -> None:
    """Score a data set or a file of raw rows in this process, without MPI, a batch at a time."""
    first = 0

    def progress() -> LineText:
        words = ("scoring", fmt.plural(first, "row")) if first else ("loading the model",)
        return LineText(words, words)

    with LiveLine(progress), ScoreFile.create(out) as file:
        from heterps_hpc.serving.predictor import Predictor, sigmoid

        predictor = Predictor.load(run_dir, step)
        for rows in predictor.batches(data, delimiter):
            scores = predictor.score_rows(rows)
            columns: dict[str, NDArray[Any]] = {
                "sample_id": np.arange(first, first + rows.num_rows),
                "score": scores.astype(np.float32),
            }
            if predictor.model.score_is_logit:
                columns["probability"] = sigmoid(scores).astype(np.float32)
            file.append(_with_ids(columns, rows.ids))
            first += rows.num_rows
        if first == 0:
            raise UserError(f"{data}: it has no rows to score")
    log.info("%s of step %d in %s", fmt.plural(first, "score"), predictor.step, out)


def _with_ids(columns: Columns, ids: NDArray[np.object_] | None) -> Columns:
    """The user's own name of each row first, where there is one."""
    return columns if ids is None else {"id": ids, **columns}


def _checkpoint(run: RunDir, step: int | None) -> Checkpoint:
    if step is not None:
        return Checkpoint.open(directory_of(run.checkpoints, step))
    found = newest(run.checkpoints)
    if found is None:
        raise UserError(f"{run.path} has no checkpoint; train with `checkpoint: {{at_end: true}}`")
    return found
