"""Small datasets and input files in their true formats, made by the tests themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from heterps_hpc.dataset import Keys, SampleRows, Schema, SlotSpec, offsets_of
from heterps_hpc.dataset.write import DatasetWriter

MIXED = Schema(
    slots=(
        SlotSpec(name="one"),
        SlotSpec(name="many", kind="many"),
        SlotSpec(name="heavy", kind="many", weighted=True),
    ),
    dense_columns=("a", "b", "c"),
    labels=("click", "buy"),
    has_weight=True,
    has_group=True,
)


def mixed_rows(num_rows: int, seed: int = 0) -> SampleRows:
    """Every kind of column; the first dense column is the row's number."""
    rng = np.random.default_rng(seed)

    def ragged(weighted: bool) -> Keys:
        offsets = offsets_of(rng.integers(0, 4, num_rows))
        total = int(offsets[-1])
        keys = rng.integers(0, 2**64, total, dtype=np.uint64)
        return Keys(keys, offsets, rng.random(total, np.float32) if weighted else None)

    dense = rng.random((num_rows, 3), np.float32)
    dense[:, 0] = np.arange(num_rows)
    return SampleRows(
        {
            "one": Keys(np.arange(num_rows, dtype=np.uint64) * np.uint64(7)),
            "many": ragged(False),
            "heavy": ragged(True),
        },
        dense,
        rng.integers(0, 2, (num_rows, 2)).astype(np.float32),
        rng.random(num_rows, np.float32),
        rng.integers(0, 2**64, num_rows, dtype=np.uint64),
    )


def write_mixed(path: Path, num_rows: int, step: int = 37, **options: Any) -> SampleRows:
    """A dataset of those rows, appended `step` at a time."""
    rows = mixed_rows(num_rows)
    with DatasetWriter(path, MIXED, **options) as writer:
        for first in range(0, num_rows, step):
            writer.append(rows.cut(first, min(num_rows, first + step)))
    return rows


def assert_same_keys(got: Keys, expected: Keys) -> None:
    np.testing.assert_array_equal(got.keys, expected.keys)
    for name in ("offsets", "weights"):
        left, right = getattr(got, name), getattr(expected, name)
        assert (left is None) == (right is None), name
        if left is not None:
            np.testing.assert_array_equal(left, right)


def assert_rows(batch: Any, expected: SampleRows) -> None:
    """All columns of a batch are those of the rows."""
    for name in ("dense", "labels", "weight", "group"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name), err_msg=name)
    for name, keys in expected.slots.items():
        assert_same_keys(batch.slots[name], keys)


def criteo_line(rng: np.random.Generator) -> bytes:
    """A row as Criteo writes it, some fields empty, some integers negative or long."""
    fields = [b"%d" % rng.integers(0, 2)]
    for _ in range(13):
        kind = rng.random()
        if kind < 0.2:
            fields.append(b"")
        elif kind < 0.25:
            fields.append(b"-%d" % rng.integers(1, 4))
        elif kind < 0.3:
            fields.append(b"%d" % rng.integers(10**8, 10**11))
        else:
            fields.append(b"%d" % int(10 ** (rng.random() * 8)))
    for place in range(26):
        top = 2**32 if place % 3 else 20
        fields.append(b"" if rng.random() < 0.15 else b"%08x" % rng.integers(0, top))
    return b"\t".join(fields) + b"\n"


def write_criteo(path: Path, num_rows: int, seed: int = 0) -> list[bytes]:
    """A Criteo file; returns its lines."""
    rng = np.random.default_rng(seed)
    lines = [criteo_line(rng) for _ in range(num_rows)]
    path.write_bytes(b"".join(lines))
    return lines
