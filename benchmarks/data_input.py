"""Input of the data benchmark: text as Criteo writes it, and the same columns as plain binaries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from data_prep.synthetic import zipf_ranks
from heterps_hpc.counter_rng import mix64

# distinct values of C1 .. C26 in the Kaggle challenge's train.txt
# fmt: off
CARDINALITIES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
# fmt: on
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_STEP = 100_000
_MISSING = {2: 0.034, 3: 0.034, 18: 0.44, 19: 0.44, 21: 0.76, 24: 0.44, 25: 0.44}


def write_criteo_like(path: Path, num_rows: int) -> None:
    """A file with Criteo's format, cardinalities and share of empty fields."""
    options = pacsv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with path.open("wb") as file:
        for first in range(0, num_rows, _STEP):
            table = _table(min(_STEP, num_rows - first), first)
            pacsv.write_csv(table, file, options)


def _table(count: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = [pa.array(rng.integers(0, 2, count, np.int8))]
    for place in range(13):
        values = np.exp(rng.normal(2, 2, count)).astype(np.int64) - (place == 1)
        empty = rng.random(count) < (0.45 if place in (0, 9, 11) else 0.05)
        columns.append(pa.array(values, mask=empty))
    for place, cardinality in enumerate(CARDINALITIES):
        ranks = zipf_ranks(rng.random(count), cardinality, 1.1).view(np.uint64)
        values = mix64(ranks | np.uint64(place << 40)).astype(np.uint32)
        empty = rng.random(count) < _MISSING.get(place, 0.0)
        columns.append(_hex_column(values, empty))
    return pa.table(columns, names=[f"c{place}" for place in range(40)])


def _hex_column(values: np.ndarray, empty: np.ndarray) -> pa.Array:
    digits = np.empty((len(values), 8), np.uint8)
    for place in range(8):
        digits[:, place] = _HEX[(values >> np.uint32(28 - 4 * place)) & np.uint32(15)]
    words = digits.view("S8")[:, 0].astype("U8")
    return pa.array(words, mask=empty)


def write_binaries(path: Path, columns: dict[str, np.ndarray]) -> None:
    """Each column as the bytes it consists of: what a memory map can read fastest."""
    path.mkdir()
    for name, column in columns.items():
        column.tofile(path / name)
