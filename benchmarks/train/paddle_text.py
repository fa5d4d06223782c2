"""The click log as the text that Paddle's InMemoryDataset reads: per slot a count, then values."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.train.workload import Workload, open_reader
from heterps_hpc.dataset import Batch

# Paddle keeps all slots in one table: keys of different slots must differ
SLOT_STRIDE = 1_000_000


def ready_text(work: Workload, data: Path, num_batches: int) -> Path:
    """One text file with the first batches of the workload, made on first use."""
    path = data.parent / f"{data.name}.{num_batches}.txt"
    if path.exists():
        return path
    temporary = path.with_suffix(".part")
    reader = open_reader(work, data, 0, 1)
    with temporary.open("wb") as file:
        for _ in range(num_batches):
            batch = next(reader)
            _write(work, batch, file)
    reader.close()
    temporary.rename(path)
    return path


def _write(work: Workload, batch: Batch, file: BinaryIO) -> None:
    assert batch.labels is not None
    rows = len(batch.sample_ids)
    columns: list[pa.Array] = []
    for number, name in enumerate(work.slots):
        keys = batch.slots[name].keys.reshape(rows, work.keys_per_slot)
        columns.append(pa.array(np.full(rows, work.keys_per_slot)))
        shifted = keys.astype(np.int64) + 1 + number * SLOT_STRIDE
        columns += [pa.array(np.ascontiguousarray(column)) for column in shifted.T]
    if batch.dense is not None:
        dense = batch.dense.astype(np.float64).round(4)
        columns.append(pa.array(np.full(rows, work.num_dense)))
        columns += [pa.array(np.ascontiguousarray(column)) for column in dense.T]
    columns.append(pa.array(np.ones(rows, dtype=np.int64)))
    columns.append(pa.array(batch.labels[:, 0].astype(np.int64)))
    table = pa.table(columns, names=[str(i) for i in range(len(columns))])
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter=" ")
    pyarrow.csv.write_csv(table, file, options)
