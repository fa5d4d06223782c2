"""What a new row costs: a short run meets mostly new keys, a long one hardly any.

Timed apart, on a scratch table of the same kind, so that the times of a table's pulls can be freed
of it and a plan can count the rows that its whole job will create.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from heterps_hpc.core import Table
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.state.begin import rows_for_data
from heterps_hpc.table_size import expected_rows

_NUM_KEYS = 10_000  # of a pull
_NUM_PULLS = 10


def reserve_as_the_job(rank: Rank) -> None:
    """Get memory for rows as the planned job will, but for no more than the measured batches can
    look up; and wait for it, as what the job waits for is over after its first batches."""
    if rank.tables is None:
        return
    train, looked_up = rank.job.train, _looked_up(rank)
    for name, rows in rows_for_data(rank, all_data=True).items():
        rank.tables.reserve(name, min(rows, math.ceil((train.steps or rows) * looked_up[name])))
    for table in rank.tables.tables.values():
        table.wait_until_reserved()


def _looked_up(rank: Rank) -> dict[str, float]:
    """Keys of every table in a batch."""
    mean_keys = {slot.name: slot.mean_keys for slot in rank.dataset.manifest.slots}
    found = {table.name: 0.0 for table in rank.model.tables}
    for lookup in rank.model.lookups:  # derived slots have no keys in the data
        found[lookup.table] += rank.job.train.batch_size * mean_keys.get(lookup.slot, 0.0)
    return found


def new_row_seconds(rank: Rank) -> float:
    """Seconds that a pull takes longer for a key without a row than for one with a row, in memory
    that is reserved where the job reserves it."""
    if rank.tables is None or not rank.tables.tables:
        return 0.0
    reserved = expected_rows(rank.model, rank.job.train) or rows_for_data(rank, all_data=True)
    like = next(iter(rank.tables.tables.values())).config
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
