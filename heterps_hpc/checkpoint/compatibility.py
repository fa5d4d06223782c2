"""What must be the same for a resumed run to be the run that was interrupted."""

from __future__ import annotations

from typing import Any

from heterps_hpc.checkpoint.store import Checkpoint
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError


def must_match(job: Job) -> dict[str, Any]:
    """Settings that decide what is learned, by their names in job.yaml.

    Not among them: the layout, micro-batches, tiers, threads, the number of steps, and learning
    rates, which people change in the middle of a run on purpose.
    """
    train, tables = job.train, job.train.tables
    return {
        "data.shuffle": job.data.shuffle,
        "data.drop_last": job.data.drop_last,
        "data.label": job.data.label,
        "train.batch_size": train.batch_size,
        "train.staleness": train.staleness,
        "train.seed": train.seed,
        "train.precision": train.precision,
        "train.sparse.optimizer": train.sparse.optimizer,
        "train.dense.optimizer": train.dense.optimizer,
        "train.tables.num_partitions": tables.num_partitions,
        "train.tables.precision": tables.precision,
        "train.tables.admit_after": tables.admit_after,
        "train.tables.sketch_bytes": tables.sketch_bytes,
        "train.tables.counters": tables.counters,
        "train.tables.track_changes": tables.track_changes,
        "train.tables.show_decay": tables.show_decay,
        "train.tables.evict_after_steps": tables.evict_after_steps,
        "train.tables.evict_below_score": tables.evict_below_score,
        "train.tables.evict_every": tables.evict_every,
        "train.tables.show_weight": tables.show_weight,
        "train.tables.click_weight": tables.click_weight,
    }


def check_match(
    checkpoint: Checkpoint, job: Job, model_fingerprint: str, data_fingerprint: str
) -> None:
    """Refuse a checkpoint of another run, naming what differs."""
    manifest = checkpoint.manifest
    here = {"model": model_fingerprint, "data.train": data_fingerprint, **must_match(job)}
    there = {
        "model": manifest.model_fingerprint,
        "data.train": manifest.data_fingerprint,
        **manifest.must_match,
    }
    # a setting that was not kept yet when the checkpoint was made cannot be compared
    differ = [name for name in here if name in there and here[name] != there[name]]
    if differ:
        listed = "; ".join(f"{name} is {here[name]!r}, was {there[name]!r}" for name in differ)
        raise UserError(
            f"{checkpoint.path}: made by another run ({manifest.job!r}): {listed}. Put the "
            "settings back to continue, or start a new run from its weights with `train.init_from`"
        )
