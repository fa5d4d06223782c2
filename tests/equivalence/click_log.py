"""A small click log with everything that has ever broken a distributed trainer.

Its number of rows is divisible by nothing; one slot has no keys in whole batches; one has
repeated keys within a sample, one key weights; keys are shared between slots.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from heterps_hpc.dataset import Dataset, DatasetWriter, Keys, Rows, Schema, SlotSpec, offsets_of

NUM_ROWS = 211


def write_click_log(path: Path, *, weight: bool = False, num_dense: int = 3) -> Dataset:
    """Write it once; the same rows every time."""
    schema = Schema(
        slots=(
            SlotSpec(name="user"),
            SlotSpec(name="tags", kind="many"),
            SlotSpec(name="rare", kind="many"),
            SlotSpec(name="history", kind="many", weighted=True),
            SlotSpec(name="page"),
            SlotSpec(name="item"),
        ),
        dense_columns=tuple(f"d{number}" for number in range(num_dense)),
        labels=("click",),
        has_weight=weight,
    )
    with DatasetWriter(path, schema, rows_per_shard=100, block_rows=16, seed=3) as writer:
        writer.append(_rows(weight, num_dense))
    return Dataset.open(path)


def _rows(weight: bool, num_dense: int) -> Rows:
    rng = np.random.default_rng(7)

    def keys(count: int, cardinality: int, salt: int) -> np.ndarray:
        drawn = np.minimum(rng.zipf(1.3, count), cardinality).astype(np.uint64)
        return drawn * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)

    def many(mean: float, cardinality: int, salt: int, weighted: bool = False) -> Keys:
        offsets = offsets_of(rng.poisson(mean, NUM_ROWS))
        total = int(offsets[-1])
        weights = rng.random(total, np.float32) + np.float32(0.5) if weighted else None
        return Keys(keys(total, cardinality, salt), offsets, weights)

    return Rows(
        {
            "user": Keys(keys(NUM_ROWS, 60, 1)),
            "tags": many(2.5, 40, 2),
            "rare": many(0.02, 5, 3),
            "history": many(3.0, 30, 4, weighted=True),
            "page": Keys(keys(NUM_ROWS, 8, 1)),  # the same keys as users': they may share a table
            "item": Keys(keys(NUM_ROWS, 50, 5)),
        },
        rng.standard_normal((NUM_ROWS, num_dense), np.float32) if num_dense else None,
        (rng.random((NUM_ROWS, 1)) < 0.4).astype(np.float32),
        rng.random(NUM_ROWS, np.float32) + np.float32(0.1) if weight else None,
    )
