"""A rank's state between two batches: taken in a moment, written to a shard later.

Tables are taken as copy-on-write snapshots. Everything else is small and is copied at once: dense
parameters with their optimizer's state, and the rows that are already pooled for later batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heterps_hpc.checkpoint import PlannedArray, RowFormat, ShardSpec, ShardWriter
from heterps_hpc.checkpoint.contents import EXTRA
from heterps_hpc.checkpoint.manifest import Kind
from heterps_hpc.core.table import Rows, Snapshot
from heterps_hpc.model import Lookup
from heterps_hpc.runtime.sparse import Prefetched
from heterps_hpc.runtime.stage import StageModules

_ROWS_PER_BLOCK = 65536

# columns of a dense tensor alongside its value: the optimizer's, per element or one for all
STATE, COUNT = "state.", "count."
# alongside the pooled rows of a look-up: its keys that were not admitted yet
ABSENT = " absent"

Array = NDArray[Any]


@dataclass
class Captured:
    """What one rank will write."""

    step: int
    tables: dict[str, Snapshot] = field(default_factory=dict)
    formats: dict[str, RowFormat] = field(default_factory=dict)
    arrays: list[tuple[PlannedArray, Array]] = field(default_factory=list)

    def add(
        self,
        kind: Kind,
        name: str,
        column: str,
        value: Array,
        partitions: tuple[int, ...] | None = None,
    ) -> None:
        """Keep a copy of an array."""
        value = np.array(value, order="C", ndmin=1)
        if value.size:
            plan = PlannedArray(kind, name, column, value.dtype, value.shape, partitions)
            self.arrays.append((plan, value))

    def close(self) -> None:
        """Close the snapshots, so that training has no rows to preserve for them any more."""
        for snapshot in self.tables.values():
            snapshot.close()


def prefetched_arrays(
    prefetched: Mapping[int, Prefetched],
) -> Iterator[tuple[int, Lookup, str, Array]]:
    """Step, look-up, column and value of what batches keep that were pulled before their step."""
    for step, pulled in prefetched.items():
        for lookup, matrix in pulled.rows.items():
            yield step, lookup, "", matrix
            yield step, lookup, ABSENT, pulled.absent[lookup]


def lookup_name(lookup: Lookup) -> str:
    """A look-up as a word: its slot, its table and what it writes."""
    return json.dumps([lookup.slot, lookup.table, lookup.writes])


def dense_arrays(modules: StageModules) -> Iterator[tuple[str, str, Array]]:
    """Every parameter by name, with its part of the optimizer's state."""
    flat = modules.parameters
    state: dict[str, Any] = modules.optimizer.state.get(flat, {})
    for name, (first, shape) in modules.named_slices().items():
        last = first + shape.numel()
        yield name, "value", _host(flat[first:last].view(shape))
        for column, value in state.items():
            if not isinstance(value, torch.Tensor):
                continue
            if value.numel() == flat.numel() and value.dim() == flat.dim():
                yield name, f"{STATE}{column}", _host(value[first:last].view(shape))
            else:  # one number for all, such as Adam's count of steps
                yield name, f"{COUNT}{column}", _host(value.reshape(1))


def _host(tensor: torch.Tensor) -> Array:
    return tensor.detach().cpu().numpy()


def write_shard(
    captured: Captured, path: Path, rank: int, tick: Callable[[], None] = lambda: None
) -> ShardSpec:
    """Write a captured state to a file; any thread may, while training continues.

    `tick` is called now and then: a long write is no stall.
    """
    tables = [_TableWriter(name, snapshot) for name, snapshot in captured.tables.items()]
    plans = [plan for plan, _ in captured.arrays]
    plans += [plan for table in tables for plan in table.plans()]
    with ShardWriter(path, rank, plans, {"step": captured.step}) as writer:
        for table in tables:
            table.write(writer, tick)
        for plan, value in captured.arrays:
            writer.write(plan, 0, value)
        return writer.close()


class _TableWriter:
    """Plans and writes the columns of one table's snapshot."""

    def __init__(self, name: str, snapshot: Snapshot) -> None:
        self._name = name
        self._snapshot = snapshot
        self._columns: dict[str, PlannedArray] = {}
        self._extras: dict[int, dict[str, Array]] = {}

    def plans(self) -> list[PlannedArray]:
        """All columns with their sizes, which HDF5 wants to know before the first byte."""
        partitions = self._snapshot.partitions()
        num_rows = sum(self._snapshot.num_rows(partition) for partition in partitions)
        for name, example in self._examples().items():
            if example.shape[1:] != (0,):
                self._plan(name, example, num_rows)
        self._extras = {partition: self._snapshot.extra(partition) for partition in partitions}
        for name in dict.fromkeys(name for extra in self._extras.values() for name in extra):
            values = [extra[name] for extra in self._extras.values() if name in extra]
            self._plan(EXTRA + name, values[0], sum(len(value) for value in values))
        return list(self._columns.values())

    def _plan(self, column: str, example: Array, num_rows: int) -> None:
        shape = (num_rows, *example.shape[1:])
        self._columns[column] = PlannedArray("table", self._name, column, example.dtype, shape)

    def _examples(self) -> dict[str, Array]:
        """The columns of some rows, to see their types; of no rows if there are none."""
        for partition in self._snapshot.partitions():
            if self._snapshot.num_rows(partition):
                return _columns(next(self._snapshot.read(partition, 1)))
        return {"keys": np.empty(0, np.uint64)}

    def write(self, writer: ShardWriter, tick: Callable[[], None]) -> None:
        """Write partition by partition, releasing each as soon as it is written."""
        for partition in self._snapshot.partitions():
            for plan in self._columns.values():  # a segment for every partition, even if empty
                writer.write(plan, partition, np.empty((0, *plan.shape[1:]), plan.dtype))
            for rows in self._snapshot.read(partition, _ROWS_PER_BLOCK):
                for name, value in _columns(rows).items():
                    if name in self._columns:
                        writer.write(self._columns[name], partition, value)
                tick()
            for name, value in self._extras.pop(partition).items():
                writer.write(self._columns[EXTRA + name], partition, value)
            self._snapshot.release(partition)


def _columns(rows: Rows) -> dict[str, Array]:
    return {"keys": rows.keys, "vectors": rows.vectors, "state": rows.state, **rows.counters}
