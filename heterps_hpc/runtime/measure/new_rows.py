"""What a new row costs: a short run meets mostly new keys, a long one hardly any.

Timed apart, on a scratch table of the same kind, so that the times of a table's pulls can be freed
of it and a plan can count the rows that its whole job will create.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from heterps_hpc.core import Table
from heterps_hpc.runtime.tables import TableShards

_NUM_KEYS = 10_000  # of a pull
_NUM_PULLS = 10


def new_row_seconds(shards: TableShards | None, *, reserved: bool) -> float:
    """Seconds that a pull takes longer for a key without a row than for one with a row; less where
    memory for the rows is reserved before."""
    if shards is None or not shards.tables:
        return 0.0
    like = next(iter(shards.tables.values())).config
    config = replace(like, name="new rows", admission=1, sketch_bytes=None, hot_bytes=None)
    table = Table(replace(config, spill_path=None))
    if reserved:
        table.reserve(_NUM_KEYS * _NUM_PULLS)
        table.wait_until_reserved()
    first, second = (_pull_all(table) for _ in range(2))
    return max(0.0, first - second) / (_NUM_KEYS * _NUM_PULLS)


def _pull_all(table: Table) -> float:
    out = np.empty((_NUM_KEYS, table.config.dim), dtype=table.config.dtype)
    keys = np.arange(_NUM_KEYS * _NUM_PULLS, dtype=np.uint64) + np.uint64(1)
    began = time.perf_counter()
    for part in np.split(keys, _NUM_PULLS):
        pulled = table.pull(part, out=out)
        if pulled is not None:
            table.discard(pulled)
    return time.perf_counter() - began
