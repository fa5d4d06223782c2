"""A small click log with everything that has ever broken a distributed trainer.

Its number of rows is divisible by nothing; one slot has no keys in whole batches; one has
repeated keys within a sample, one key weights; keys are shared between slots.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from heterps_hpc.dataset import Dataset, Keys, SampleRows, Schema, SlotSpec, offsets_of
from heterps_hpc.dataset.write import DatasetWriter

NUM_ROWS = 211
NUM_DENSE = 3


def write_click_logs(path: Path) -> None:
    """The data of all cases: without and with sample weights, and a test set of other rows."""
    write_click_log(path / "plain")
    write_click_log(path / "weight", weight=1.0)
    write_click_log(path / "nan", nan_row=50)
    write_click_log(path / "test", seed=8)


def write_click_log(
    path: Path,
    *,
    weight: float | None = None,
    seed: int = 7,
    nan_row: int | None = None,
) -> Dataset:
    """The same rows every time; `weight`: samples have weights, multiplied by that."""
    schema = Schema(
        slots=(
            SlotSpec(name="user"),
            SlotSpec(name="tags", kind="many"),
            SlotSpec(name="rare", kind="many"),
            SlotSpec(name="history", kind="many", weighted=True),
            SlotSpec(name="page"),
            SlotSpec(name="item"),
        ),
        dense_columns=tuple(f"d{number}" for number in range(NUM_DENSE)),
        labels=("click",),
        has_weight=weight is not None,
    )
    with DatasetWriter(path, schema, rows_per_shard=100, block_rows=16, seed=3) as writer:
        rows = _rows(weight, seed)
        if nan_row is not None:
            assert rows.dense is not None
            rows.dense[nan_row, 0] = np.nan
        writer.append(rows)
    return Dataset.open(path)


def _rows(weight: float | None, seed: int) -> SampleRows:
    rng = np.random.default_rng(seed)

    def keys(count: int, cardinality: int, salt: int) -> np.ndarray:
        drawn = np.minimum(rng.zipf(1.3, count), cardinality).astype(np.uint64)
        return drawn * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)

    def many(mean: float, cardinality: int, salt: int, weighted: bool = False) -> Keys:
        offsets = offsets_of(rng.poisson(mean, NUM_ROWS))
        total = int(offsets[-1])
        weights = rng.random(total, np.float32) + np.float32(0.5) if weighted else None
        return Keys(keys(total, cardinality, salt), offsets, weights)

    return SampleRows(
        {
            "user": Keys(keys(NUM_ROWS, 60, 1)),
            "tags": many(2.5, 40, 2),
            "rare": many(0.02, 5, 3),
            "history": many(3.0, 30, 4, weighted=True),
            "page": Keys(keys(NUM_ROWS, 8, 1)),  # the same keys as users': they may share a table
            "item": Keys(keys(NUM_ROWS, 50, 5)),
        },
        rng.standard_normal((NUM_ROWS, NUM_DENSE), np.float32),
        (rng.random((NUM_ROWS, 1)) < 0.4).astype(np.float32),
        None if weight is None else weight * (rng.random(NUM_ROWS, np.float32) + np.float32(0.1)),
    )
