"""Scores a data set with a checkpoint, in sample order.

    mpirun -n N python -m mpi4py -m heterps_hpc.runtime.predict DIRECTORY

DIRECTORY is laid out like a run: a job whose test data is what to score and whose `init_from` is
the checkpoint, and a layout. The scores go to scores.h5 there.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

import h5py
import numpy as np
import torch
from mpi4py import MPI

from heterps_hpc.checkpoint import Checkpoint
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.ending import end_world
from heterps_hpc.runtime.evaluate import Evaluator
from heterps_hpc.runtime.state.restore import resume
from heterps_hpc.runtime.training import Trainer

SCORES_FILE = "scores.h5"


def main(arguments: list[str]) -> int:
    """Score; the exit code is that of the rank program."""
    parser = argparse.ArgumentParser(prog="heterps_hpc.runtime.predict", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--component", type=int, default=None)
    directory = RunDir(parser.parse_args(arguments).run_dir)
    try:
        predict(MPI.COMM_WORLD, directory)
    except UserError as error:
        end_world(MPI.COMM_WORLD, ExitCode.USER_ERROR, str(error))
    except Exception as error:
        traceback.print_exc()
        end_world(MPI.COMM_WORLD, ExitCode.RANK_FAILED, f"{type(error).__name__}: {error}")
    return int(ExitCode.DONE)


def predict(comm: MPI.Intracomm, directory: RunDir) -> None:
    """Load, score, write; all ranks call it."""
    job = Job.parse_saved(directory.job)
    layout = Layout.load(directory.layout)
    torch.set_num_threads(layout.components[layout.ranks[comm.rank].component].cores_per_rank)
    assert job.train.init_from is not None
    assert job.data.test is not None
    trainer = Trainer(comm, job, layout)
    resume(trainer, Checkpoint.open(job.train.init_from))
    dataset = Dataset.open(job.data.test)
    columns = Evaluator(trainer.parts, dataset, trainer.progress.reporter).scores()
    if columns is not None:
        write_scores(directory.path / SCORES_FILE, columns, trainer.parts.model.score_is_logit)
    trainer.close()


def write_scores(path: Path, columns: list[np.ndarray], is_logit: bool) -> None:
    """One row per sample: its number, its score and, for logits, its probability."""
    scores, labels, _, sample_ids = columns
    temporary = path.with_suffix(".part")
    with h5py.File(temporary, "w") as file:
        file["sample_id"] = sample_ids
        file["score"] = scores.astype(np.float32)
        file["label"] = labels.astype(np.float32)
        if is_logit:
            file["probability"] = (1 / (1 + np.exp(-scores))).astype(np.float32)
    temporary.rename(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
