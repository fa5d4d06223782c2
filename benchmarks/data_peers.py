"""Peers of data_prep.criteo, each as one would write it: pandas, and a plain Python loop.

    python data_peers.py pandas|loop INPUT OUTPUT      (prints the seconds it took)

It imports nothing of this package, so that it runs in an environment of its own. The transforms
are the same: log(1 + x), and the documented 64-bit hash of the categories; the output is HDF5.
"""

from __future__ import annotations

import math
import sys
import time
from array import array
from typing import Any

import h5py
import numpy as np
import xxhash

INTEGERS = [f"I{number}" for number in range(1, 14)]
CATEGORIES = [f"C{number}" for number in range(1, 27)]
MASK = (1 << 64) - 1


def mix(value: int) -> int:
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def by_pandas(source: str, out: str) -> int:
    """Chunked, with categories encoded by pandas, so that only distinct values are hashed."""
    import pandas as pd

    kinds: dict[str, Any] = dict.fromkeys(INTEGERS, "float64")
    kinds |= dict.fromkeys(CATEGORIES, "category") | {"label": "int8"}
    rows = 0
    with h5py.File(out, "w") as file:
        for chunk in pd.read_csv(
            source,
            sep="\t",
            header=None,
            names=["label", *INTEGERS, *CATEGORIES],
            dtype=kinds,
            chunksize=100_000,
        ):
            group = file.create_group(f"{rows:012d}")
            group["labels"] = chunk["label"].to_numpy(np.float32)
            dense = np.log1p(chunk[INTEGERS].fillna(0).clip(lower=0).to_numpy(np.float32))
            group["dense"] = dense
            for name in CATEGORIES:
                base = xxhash.xxh3_64_intdigest(name.encode())
                column = chunk[name].cat
                keys = [mix(base + int(text, 16)) for text in column.categories]
                keys.append(mix(base - 1))
                group[name] = np.array(keys, np.uint64)[column.codes.to_numpy()]
            rows += len(chunk)
    return rows


def by_loop(source: str, out: str) -> int:
    """Line by line."""
    bases = [xxhash.xxh3_64_intdigest(name.encode()) for name in CATEGORIES]
    labels, dense = array("f"), array("f")
    keys = [array("Q") for _ in CATEGORIES]
    with open(source) as file:  # noqa: PTH123
        for line in file:
            fields = line.rstrip("\n").split("\t")
            labels.append(int(fields[0]))
            dense.extend(math.log1p(max(int(field or 0), 0)) for field in fields[1:14])
            for base, column, field in zip(bases, keys, fields[14:], strict=True):
                column.append(mix(base + int(field, 16)) if field else mix(base - 1))
    with h5py.File(out, "w") as target:
        target["labels"] = np.frombuffer(labels, np.float32)
        target["dense"] = np.frombuffer(dense, np.float32).reshape(-1, 13)
        for name, column in zip(CATEGORIES, keys, strict=True):
            target[name] = np.frombuffer(column, np.uint64)
    return len(labels)


if __name__ == "__main__":
    started = time.perf_counter()
    count = {"pandas": by_pandas, "loop": by_loop}[sys.argv[1]](sys.argv[2], sys.argv[3])
    print((time.perf_counter() - started) / count)
