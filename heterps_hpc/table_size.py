"""How much memory a table takes: the one answer for measuring, planning and the preflight.

The width of a row is the core's own (`Table.row_bytes`; a test compares them). If the core changes
how rows lie in memory, `row_bytes` below is the place to follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from heterps_hpc.config import Job, TrainSpec
from heterps_hpc.errors import UserError
from heterps_hpc.model import Model

_KEY_BYTES = 8
_FIELD_BYTES = 4  # of a counter
# A line of the index, 64 bytes, holds five entries; 11 of 16 are taken when it starts to grow by a
# quarter, so that on average about 10 of 16 are in use.
_INDEX_BYTES = 64 / 5 * 16 / 10
# Copy on write goes by blocks of 24 KiB, and a batch of ordinary size touches a row of nearly every
# block before the writer has passed it: reserve the worst case, all rows once more.
_WORST_SNAPSHOT = 1.0


class SlotSize(Protocol):
    """What is known of a slot; that of a data set's manifest fits."""

    @property
    def name(self) -> str: ...
    @property
    def cardinality(self) -> int: ...


def row_bytes(dim: int, train: TrainSpec) -> int:
    """Bytes of one row: its vector, the optimizer's state, counters and the key."""
    states = {"sgd": 0, "adagrad_rowwise": 1, "adagrad": dim, "adam": 2 * dim + 1}
    options = train.tables
    fields = 0
    if options.counters or options.track_changes or options.evict_after_steps is not None:
        fields += 1  # the step at which a row last changed
    if options.counters:
        fields += 2  # shows and clicks
    if options.hot_bytes is not None:
        fields += 1  # how often it is used
    value_bytes = np.dtype(train.dtype).itemsize
    vector = _padded(dim * (value_bytes if options.precision is None else 2), 4)
    state = states[train.sparse.optimizer] * value_bytes
    return _padded(vector + state + fields * _FIELD_BYTES, 8) + _KEY_BYTES


def table_bytes(model: Model, table: str, train: TrainSpec, slots: Iterable[SlotSize]) -> float:
    """Bytes of a whole table, with its index, when all keys of the data have been seen, or as many
    as the job expects: that many are reserved; and of the sketches that count the others."""
    rows = max(num_rows(model, table, slots), expected_rows(model, train).get(table, 0))
    sketches = train.tables.num_partitions * (train.tables.sketch_bytes or 0)
    return rows * (row_bytes(model.table(table).dim, train) + _INDEX_BYTES) + sketches


def expected_rows(model: Model, train: TrainSpec) -> dict[str, int]:
    """How many rows the tables will have that the job says it of."""
    names = [table.name for table in model.tables]
    expected = train.tables.expected_rows
    if expected is None:
        return {}
    if not isinstance(expected, dict):
        return dict.fromkeys(names, expected)
    unknown = sorted(set(expected) - set(names))
    if unknown:
        raise UserError(
            f"train.tables.expected_rows names {', '.join(unknown)}; the model's tables are "
            f"{', '.join(names)}"
        )
    return dict(expected)


def num_rows(model: Model, table: str, slots: Iterable[SlotSize]) -> int:
    """Distinct keys that a table may see: those of all its slots, as if none had one in common.

    A derived slot draws keys of its source, which are counted once.
    """
    cardinality = {slot.name: slot.cardinality for slot in slots}
    sources = set()
    for lookup in model.lookups:
        if lookup.table == table:
            negative = model.negative(lookup.slot)
            sources.add(lookup.slot if negative is None else negative.source)
    return sum(cardinality[source] for source in sources)


def certain_rows(
    model: Model, table: str, train: TrainSpec, slots: Iterable[SlotSize], num_samples: int
) -> int:
    """Rows that training from scratch on so many samples will surely give a table, about.

    At least those of its largest slot, as slots may have keys in common; and of a part of the data
    at least that part of the keys, as keys are new at first and known later. None where a key need
    not get a row, or may lose it.
    """
    options = train.tables
    may_lack = options.admit_after > 1
    may_go = options.evict_after_steps is not None or options.evict_below_score is not None
    if may_lack or may_go:
        return 0
    seen = 1.0
    if train.steps is not None:
        seen = min(1.0, train.steps * train.batch_size / max(num_samples, 1))
    cardinality = {slot.name: slot.cardinality for slot in slots}
    found = [0]
    for lookup in model.lookups:
        # a sequence leaves keys out, and negatives are drawn from a sample of their source's
        if lookup.table == table and lookup.pooling != "none":
            found.append(cardinality.get(lookup.slot, 0))
    return int(seen * max(found))


def snapshot_share(job: Job) -> float:
    """Of the rows in memory, what a save may copy while ranks train.

    At the end of a run and at a stop signal ranks wait for the save, and nothing is copied.
    """
    spec = job.checkpoint
    saves_while_training = spec.every_steps is not None or spec.every_minutes is not None
    return _WORST_SNAPSHOT if saves_while_training else 0.0


def _padded(num_bytes: int, unit: int) -> int:
    """Up to a multiple of a unit, to which what follows is aligned."""
    return -(-num_bytes // unit) * unit
