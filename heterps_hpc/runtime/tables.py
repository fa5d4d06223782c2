"""The table shards of one rank: they pull all rows of a batch, and push all its gradients.

A rank works on whole batches, whatever the micro-batches: all pulls of a batch see the same
state of the table, and all its gradients make one update per row.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.config import Job
from heterps_hpc.core import Table, TableConfig, ThreadPool
from heterps_hpc.dataset import Batch, Dataset, Keys
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout, RankLayout
from heterps_hpc.model import Lookup, Model, NegativeSlot
from heterps_hpc.negatives import distinct_keys, draw_negatives
from heterps_hpc.runtime.observer import Observer
from heterps_hpc.table_size import expected_rows

Matrix = NDArray[Any]
KeyList = NDArray[np.uint64]


@dataclass
class Pulled:
    """What a push needs to know of its pull: the resolved rows of every look-up."""

    handles: dict[Lookup, Any]
    num_rows: int
    clicks: NDArray[np.float32] | None

    def absent(self) -> dict[Lookup, KeyList]:
        """The keys of every look-up that are not admitted yet."""
        return {lookup: handle.absent for lookup, handle in self.handles.items()}


def table_config(
    model: Model, name: str, job: Job, spill_suffix: str, num_held: int = 1, threads: int = 1
) -> TableConfig:
    """How one table learns, from the job; a rank's tables share its budget of hot bytes."""
    spec = model.table(name)
    sparse, options = job.train.sparse, job.train.tables
    spill = None
    if options.spill_dir is not None:
        _make_spill_dir(options.spill_dir)
        spill = str(options.spill_dir / f"{name}-{spill_suffix}.rows")
    return TableConfig(
        dim=spec.dim,
        optimizer=sparse.optimizer,
        lr=sparse.lr,
        eps=sparse.eps,
        weight_decay=sparse.weight_decay,
        beta1=sparse.betas[0],
        beta2=sparse.betas[1],
        clip_norm=sparse.clip_norm,
        initial_accumulator=sparse.initial_accumulator,
        name=name,
        seed=job.train.seed,
        init=options.init,
        init_scale=spec.init_scale,
        dtype=job.train.dtype,
        precision=options.precision,
        num_partitions=options.num_partitions,
        threads=threads,
        admission=options.admit_after,
        sketch_bytes=options.sketch_bytes,
        counters=options.counters,
        track_steps=options.track_changes,
        show_decay=options.show_decay,
        max_age=options.evict_after_steps,
        min_score=options.evict_below_score,
        show_weight=options.show_weight,
        click_weight=options.click_weight,
        evict_every=options.evict_every,
        nonfinite=options.on_nonfinite,
        hot_bytes=None if options.hot_bytes is None else max(1, options.hot_bytes // num_held),
        spill_path=spill,
    )


def _make_spill_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"train.tables.spill_dir: {path} on {os.uname().nodename} cannot be a directory: "
            f"{error.strerror}; choose one on a local disk"
        ) from None


class TableShards:
    """The tables (or parts of tables) that one rank holds, and the look-ups that read them."""

    def __init__(
        self, entry: RankLayout, model: Model, layout: Layout, job: Job, dataset: Dataset
    ) -> None:
        self._model = model
        self._seed = job.train.seed
        self._dtype = np.dtype(job.train.dtype)
        self.counters = job.train.tables.counters
        held = entry.partitions()
        cores = layout.components[entry.component].cores_per_rank
        threads_per_table, tables_at_once = assign_threads(
            job.train.tables.threads or cores, len(held)
        )
        self.thread_pool = ThreadPool(tables_at_once)
        self.observer = Observer()
        self.tables: dict[str, Table] = {
            name: Table(
                table_config(model, name, job, f"rank{entry.rank}", len(held), threads_per_table),
                partitions=partitions,
            )
            for name, partitions in held.items()
        }
        for name, num_rows in expected_rows(model, job.train).items():
            if name in self.tables:
                self.reserve(name, num_rows)
        self.has_tiers = job.train.tables.hot_bytes is not None
        self.lookups = [lookup for lookup in model.lookups if lookup.table in self.tables]
        self._readers = {
            name: [lookup for lookup in self.lookups if lookup.table == name]
            for name in self.tables
        }
        self._candidates = {
            negative.name: distinct_keys(dataset.key_sample(negative.source))
            for negative in model.negatives
            if any(lookup.slot == negative.name for lookup in self.lookups)
        }

    def reserve(self, name: str, num_rows: int) -> None:
        """Get memory for this rank's part of so many rows of a whole table, in the background."""
        table = self.tables[name]
        part = len(table.partitions) / table.config.num_partitions
        table.reserve(math.ceil(num_rows * part))

    def data_slots(self) -> tuple[str, ...]:
        """Columns that this rank reads: those of its look-ups that are not derived."""
        slots = dict.fromkeys(lookup.slot for lookup in self.lookups)
        return tuple(slot for slot in slots if self._model.negative(slot) is None)

    def prefetch(self, batch: Batch) -> None:
        """Start to fetch the cold rows of a batch that will be pulled soon."""
        drawn: dict[str, Keys] = {}
        for lookup in self.lookups:
            self.tables[lookup.table].prefetch(self._keys(lookup, batch, drawn).keys)

    def pull(
        self,
        batch: Batch,
        out: Mapping[Lookup, Matrix],
        *,
        train: bool,
        absent: Mapping[Lookup, KeyList] | None = None,
    ) -> Pulled:
        """Fill the columns of every look-up with pooled rows for the whole batch.

        `absent` are keys that had no row when this batch was pulled before, as they were not
        admitted yet.
        """
        drawn: dict[str, Keys] = {}
        keys = {lookup: self._keys(lookup, batch, drawn) for lookup in self.lookups}
        found: dict[Lookup, Any] = {}

        def pull_table(name: str) -> None:
            for lookup in self._readers[name]:
                kept_out = None if absent is None else absent.get(lookup)
                found[lookup] = _pull(
                    self.tables[name], lookup, keys[lookup], out[lookup], train, kept_out
                )

        self.each_table(pull_table)
        handles = {lookup: found[lookup] for lookup in self.lookups}
        clicks = None
        if train and self.counters and batch.labels is not None:
            clicks = np.ascontiguousarray(batch.labels[:, 0])
        return Pulled(handles, batch.num_rows, clicks)

    def push(
        self, pulled: Pulled, gradients: Mapping[Lookup, Matrix], step: int, lr: float
    ) -> None:
        """One optimizer step of every row that the batch touched."""

        def push_table(name: str) -> None:
            lookups = self._readers[name]
            clicks = None
            if pulled.clicks is not None:
                clicks = [_repeat_clicks(lookup, pulled.clicks) for lookup in lookups]
            self.tables[name].push(
                [pulled.handles[lookup] for lookup in lookups],
                [_gradient_rows(lookup, gradients[lookup]) for lookup in lookups],
                step=step,
                lr=lr,
                clicks=clicks,
            )

        self.each_table(push_table)

    def each_table(self, work: Callable[[str], None]) -> None:
        """Work on every table, on several at once; of these each is observed with its part."""
        part = 1 / self.thread_pool.num_threads

        def observed(name: str) -> None:
            began, worked = time.perf_counter(), self.observer.processor_clock()
            work(name)
            worked = self.observer.processor_clock() - worked
            self.observer.table_worked(name, part * (time.perf_counter() - began), worked)

        self.thread_pool.for_each(observed, self.tables)

    def discard(self, pulled: Pulled) -> None:
        """Drop a pull whose gradients will not come."""
        for lookup, handle in pulled.handles.items():
            self.tables[lookup.table].discard(handle)

    def all_rows(self) -> dict[str, tuple[Matrix, Matrix]]:
        """Keys and vectors of every table, for comparison and inspection."""
        found = {}
        for name, table in self.tables.items():
            snapshot = table.snapshot()
            blocks = [rows for part in snapshot.partitions() for rows in snapshot.read(part)]
            if blocks:
                keys = np.concatenate([block.keys for block in blocks])
                found[name] = (keys, np.concatenate([block.vectors for block in blocks]))
            snapshot.close()
        return found

    def _keys(self, lookup: Lookup, batch: Batch, drawn: dict[str, Keys]) -> Keys:
        negative = self._model.negative(lookup.slot)
        if negative is None:
            keys = batch.slots[lookup.slot]
            if keys.weights is None or keys.weights.dtype == self._dtype:
                return keys
            return Keys(keys.keys, keys.offsets, keys.weights.astype(self._dtype))
        if lookup.slot not in drawn:
            drawn[lookup.slot] = self._draw(negative, batch)
        return drawn[lookup.slot]

    def _draw(self, negative: NegativeSlot, batch: Batch) -> Keys:
        keys = draw_negatives(
            self._candidates[negative.name],
            negative.num_keys,
            self._seed,
            batch.epoch,
            batch.sample_ids,
            slot=negative.name,
        )
        offsets = np.arange(batch.num_rows + 1, dtype=np.int64) * negative.num_keys
        return Keys(keys.reshape(-1), offsets, None)


def assign_threads(num_threads: int, num_tables: int) -> tuple[int, int]:
    """(threads inside each table, tables at once).

    Tables differ in work, so one thread per table pays only if each thread has two tables or more;
    with fewer tables, all threads work on one table after the other.
    """
    tables_at_once = min(num_threads, num_tables // 2)
    return (1, tables_at_once) if tables_at_once > 1 else (num_threads, 1)


def _pull(
    table: Table, lookup: Lookup, keys: Keys, out: Matrix, train: bool, absent: KeyList | None
) -> Any:
    if lookup.pooling == "none":
        return _pull_sequence(table, lookup, keys, out, train, absent)
    return table.pull(
        keys.keys,
        keys.offsets,
        weights=keys.weights,
        pooling=lookup.pooling,
        out=out,
        train=train,
        absent=absent,
    )


def _pull_sequence(
    table: Table, lookup: Lookup, keys: Keys, out: Matrix, train: bool, absent: KeyList | None
) -> Any:
    """Unpooled: the first `max_keys` keys of a sample, each in a place of its own, zeros behind."""
    num_rows, width = out.shape
    dim = width // lookup.max_keys
    if keys.offsets is None:
        lengths = np.ones(num_rows, dtype=np.int64)
        starts = np.arange(num_rows, dtype=np.int64)
    else:
        lengths = np.minimum(np.diff(keys.offsets), lookup.max_keys)
        starts = keys.offsets[:-1]
    place = np.arange(lookup.max_keys)
    taken = place[None, :] < lengths[:, None]
    positions = (starts[:, None] + place[None, :])[taken]
    offsets = np.zeros(num_rows * lookup.max_keys + 1, dtype=np.int64)
    np.cumsum(taken.reshape(-1), out=offsets[1:])
    vectors = np.zeros((num_rows * lookup.max_keys, dim), dtype=out.dtype)
    handle = table.pull(
        np.ascontiguousarray(keys.keys[positions]),
        offsets,
        weights=None if keys.weights is None else np.ascontiguousarray(keys.weights[positions]),
        pooling="sum",
        out=vectors,
        train=train,
        absent=absent,
    )
    out[:] = vectors.reshape(num_rows, width)
    return handle


def _gradient_rows(lookup: Lookup, gradient: Matrix) -> Matrix:
    if lookup.pooling != "none":
        return gradient
    return np.ascontiguousarray(gradient).reshape(len(gradient) * lookup.max_keys, -1)


def _repeat_clicks(lookup: Lookup, clicks: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.repeat(clicks, lookup.max_keys) if lookup.pooling == "none" else clicks
