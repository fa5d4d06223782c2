"""Scores a data set with a checkpoint, in sample order.

    mpirun -n N python -m mpi4py -m heterps_hpc.runtime.predict DIRECTORY

DIRECTORY is laid out like a run: a job whose test data is what to score and whose `init_from` is
the checkpoint, and a layout. The scores go to scores.h5 there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
from scipy.special import expit

from heterps_hpc.checkpoint import Checkpoint
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset, Schema
from heterps_hpc.runtime.evaluate import Evaluator
from heterps_hpc.runtime.health.preflight import check_world
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.rank_program import End, Start, run_program

SCORES_FILE = "scores.h5"


def predict(start: Start) -> End:
    """Load, score, write; all ranks call it."""
    job = start.job
    assert job.train.init_from is not None
    assert job.data.test is not None
    check_world(start.comm, start.layout, start.component)
    checkpoint = Checkpoint.open(job.train.init_from)
    dataset = Dataset.open(job.data.test)
    rank = Rank(start.comm, job, start.layout, dataset, schema=_trained_on(checkpoint, job))
    rank.restore(checkpoint)
    columns = Evaluator(rank, dataset).scores()
    if columns is not None:
        path = start.run_dir.path / SCORES_FILE
        write_scores(path, columns, is_logit=rank.model.score_is_logit)
    rank.close()
    return End()


def _trained_on(checkpoint: Checkpoint, job: Job) -> Schema:
    """The schema that the model was built for; the training data itself need not be there."""
    schema = checkpoint.manifest.data_schema
    if schema is None:  # an old checkpoint
        return Dataset.open(job.data.train).manifest
    return Schema.parse(schema, f"{checkpoint.path}: data_schema")


def write_scores(path: Path, columns: list[np.ndarray], *, is_logit: bool) -> None:
    """One row per sample: its number, its score and, for logits, its probability."""
    scores, labels, _, sample_ids = columns
    temporary = path.with_suffix(".part")
    with h5py.File(temporary, "w") as file:
        file["sample_id"] = sample_ids
        file["score"] = scores.astype(np.float32)
        file["label"] = labels.astype(np.float32)
        if is_logit:
            file["probability"] = expit(scores).astype(np.float32)
    temporary.rename(path)


if __name__ == "__main__":
    sys.exit(run_program(predict, sys.argv[1:]))
