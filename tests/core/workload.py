"""Batches of keys for tests: skewed, pooled, the same for every table that gets them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.core import Snapshot, Table

Contents = dict[int, bytes]


def skewed_keys(rng: np.random.Generator, n: int, num_distinct: int) -> NDArray[np.uint64]:
    ranks = (num_distinct * rng.random(n) ** 3).astype(np.uint64)
    return ranks * np.uint64(0x9E3779B97F4A7C15)


def train(
    tables: list[Table], num_batches: int, num_distinct: int, seed: int = 0, samples: int = 512
) -> list[NDArray[np.float32]]:
    """The same batches into all tables, which may be shards; returns the sums of their pulls."""
    rng = np.random.default_rng(seed)
    dim, dtype = tables[0].config.dim, tables[0].config.dtype
    results = []
    for step in range(num_batches):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 6, samples))]).astype(np.int64)
        keys = skewed_keys(rng, int(offsets[-1]), num_distinct)
        gradient = rng.standard_normal((samples, dim)).astype(dtype)
        total = np.zeros((samples, dim), dtype)
        for table in tables:
            out = np.empty((samples, dim), dtype)
            table.prefetch(keys)
            handle = table.pull(keys, offsets, out=out)
            assert handle is not None
            total += out
            table.push([handle], [gradient], step=step)
        results.append(total)
    return results


def contents(snapshot: Snapshot, max_rows: int = 1000) -> Contents:
    """Key -> all bytes of its row."""
    result: Contents = {}
    for part in snapshot.partitions():
        for rows in snapshot.read(part, max_rows):
            assert len(rows) <= max_rows
            for i, key in enumerate(rows.keys.tolist()):
                assert key not in result
                counters = b"".join(rows.counters[k][i].tobytes() for k in sorted(rows.counters))
                result[key] = rows.vectors[i].tobytes() + rows.state[i].tobytes() + counters
    return result


def table_contents(*tables: Table) -> Contents:
    result: Contents = {}
    for table in tables:
        with table.snapshot() as snapshot:
            result |= contents(snapshot)
    return result
