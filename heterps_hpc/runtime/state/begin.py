"""Where a run begins: at its newest checkpoint, at another run's weights, or at nothing."""

from __future__ import annotations

from heterps_hpc.checkpoint import Checkpoint, newest
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.state.restore import resume
from heterps_hpc.runtime.state.warm_start import warm_start
from heterps_hpc.runtime.training import Trainer


def begin(trainer: Trainer, run_dir: RunDir) -> None:
    """Put the trainer where the run is; all ranks call it.

    A run directory is one run: whatever started us again (a requeue, a restart, `--resume`), we
    go on from its newest complete checkpoint if there is one.
    """
    checkpoint = _agree_on_newest(trainer, run_dir)
    if checkpoint is not None:
        resume(trainer, checkpoint)
    elif trainer.job.train.init_from is not None:
        warm_start(trainer, Checkpoint.open(trainer.job.train.init_from))


def _agree_on_newest(trainer: Trainer, run_dir: RunDir) -> Checkpoint | None:
    """The newest checkpoint as one rank sees it: file systems may show others an older state."""
    control = trainer.world.control
    found = newest(run_dir.checkpoints) if control.rank == 0 else None
    path = control.bcast(None if found is None else found.path)
    return None if path is None else Checkpoint.open(path)
