"""Loads windows: the selected columns of some blocks, and the buffers that they pass through.

A window in memory is its blocks column by column, as they lie in the files.

In order the columns themselves are handed out. Otherwise narrow columns are put in order when
they are read, and keys of slots with many of them are picked batch by batch.

A window is loaded in many small parts, so that its reader can spread them over the batches of the
window before: no batch waits for a whole window.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset.columns import Int64s, Keys, PickedKeys, Ragged, SampleRows, one_key_slots
from heterps_hpc.dataset.read.buffer_pool import BufferPool, key_matrix_bytes, padded
from heterps_hpc.dataset.read.dataset import (
    ColumnSelection,
    Dataset,
    ManyColumns,
    SelectedColumns,
)
from heterps_hpc.dataset.read.order import BlockTable, Window
from heterps_hpc.dataset.read.storage import Storage
from heterps_hpc.dataset.shard_schema import Column
from heterps_hpc.errors import UserError

_T = TypeVar("_T")
_WIDE_BYTES = 128  # two cache lines
# being made, being handed over, and what a consumer with batches in flight holds on to
_BATCHES_IN_USE = 8
_WINDOWS_IN_USE = 4


@dataclass(frozen=True)
class Memory:
    """What loaded windows use: for columns that become parts of batches, for those that are only
    picked from, and for the batches that are made of these."""

    given: BufferPool
    kept: BufferPool
    batches: BufferPool


@dataclass(frozen=True)
class Span:
    """Items first .. last - 1 of a column of one shard."""

    shard: int
    first: int
    last: int


class LoadedWindow:
    """The selected columns of one window; `rows` are those that batches want, in their order.

    None means all rows as they are.
    """

    def __init__(
        self,
        window: Window,
        rows: Int64s | None,
        table: BlockTable,
        storage: Storage,
        wanted: SelectedColumns,
        memory: Memory,
    ) -> None:
        self._window = window
        self._rows = rows
        self._table = table
        self._storage = storage
        self._wanted = wanted
        self._memory = memory
        self._shards = table.shard[window.blocks].tolist()
        self._in_shard = table.in_shard[window.blocks].tolist()
        self._row_spans = self._spans_of_rows()
        self._key_spans = self._spans_of_keys()
        self._ids = self._sample_ids()
        # columns that are not keys by their path, the keys of slots with one as a matrix, for
        # its rows are cut faster than as many arrays
        self._columns: dict[str, NDArray[Any]] = {}
        self._keys: NDArray[np.uint64] = np.empty((0, 0), np.uint64)
        self._allocate(memory.given if rows is None else memory.kept)
        self._ragged: dict[str, Ragged] = {}
        self._single: dict[str, NDArray[Any]] = {}
        # slots whose keys are in the order of the batches already; those of the others are picked
        self._ready: dict[str, Keys] = {}
        self._wide: list[ManyColumns] = []
        self._parts = self._load()
        self.num_parts = len(self._row_spans) + len(wanted.by_key) + len(wanted.many)
        if rows is not None:  # at most: wide columns are not picked
            self.num_parts += len(wanted.single) + len(wanted.one) + 2 * len(wanted.many)

    def load(self, num_parts: int | None = None) -> None:
        """Load some of the parts that are left, or all; without any left nothing is done."""
        for _ in islice(self._parts, num_parts):
            pass

    def prepare_next(self) -> None:
        """Get memory for the window after this loaded one, if it cannot have this one's. Where the
        system is slow to find it, the batches that it is loaded with would take twice as long."""
        if self._wide:
            self._memory.kept.prepare(self._num_bytes)

    def _load(self) -> Iterator[None]:
        yield from self._read()
        for slot in self._wanted.many:
            lengths = self._columns[slot.lengths.path]
            self._ragged[slot.name] = self._ragged_of(slot.name, lengths)
            yield
        for use, column in self._wanted.single.items():
            self._single[use] = self._columns[column.path]
        if self._rows is None:
            self._ready = self._whole_slots()
            return
        yield from self._put_in_order(self._rows)
        self._wide = [slot for slot in self._wanted.many if self._is_wide(slot)]
        narrow = [slot for slot in self._wanted.many if slot not in self._wide]
        if narrow:
            self._ready = yield from self._pick(self._rows, narrow, self._memory.given)
        if not self._wide:
            self._columns = {}  # nothing is picked from them any more: the next window's memory

    def _spans_of_rows(self) -> list[Span]:
        """Neighbouring blocks as one."""
        counts = self._table.num_rows[self._window.blocks].tolist()
        step = self._storage.block_rows
        spans: list[Span] = []
        for shard, block, count in zip(self._shards, self._in_shard, counts, strict=True):
            first = block * step
            if spans and spans[-1].shard == shard and spans[-1].last == first:
                spans[-1] = Span(shard, spans[-1].first, first + count)
            else:
                spans.append(Span(shard, first, first + count))
        return spans

    def _spans_of_keys(self) -> dict[str, list[Span]]:
        """For each slot of many keys, one span for each block."""
        if not self._wanted.many:
            return {}
        starts = {number: self._storage.shard(number).starts for number in set(self._shards)}
        places = list(zip(self._shards, self._in_shard, strict=True))
        return {
            slot.name: [
                Span(shard, *starts[shard][slot.name][block : block + 2].tolist())
                for shard, block in places
            ]
            for slot in self._wanted.many
        }

    def _sample_ids(self) -> Int64s:
        if self._rows is None and len(self._row_spans) == 1:
            first = int(self._table.first_row[self._window.blocks[0]])
            return np.arange(first, first + self._window.num_rows)
        counts = self._table.num_rows[self._window.blocks]
        shift = self._table.first_row[self._window.blocks] - (np.cumsum(counts) - counts)
        ids: Int64s = np.repeat(shift, counts)
        ids += np.arange(self._window.num_rows)
        return ids if self._rows is None else ids[self._rows]

    def _allocate(self, memory: BufferPool) -> None:
        """Memory for all columns as they are in the shards."""
        wanted, num_rows = self._wanted, self._window.num_rows
        lengths = [(column, num_rows) for column in wanted.various]
        for column in wanted.by_key:
            count = sum(span.last - span.first for span in self._key_spans[column.slot])
            lengths.append((column, count))
        num_bytes = sum(padded(length * column.item_bytes) for column, length in lengths)
        self._num_bytes = num_bytes + key_matrix_bytes(len(wanted.one), num_rows)
        arena = memory.arena(self._num_bytes)
        self._columns = {
            column.path: arena.empty(column.shape(length), column.dtype)
            for column, length in lengths
        }
        self._keys = arena.key_matrix(len(wanted.one), num_rows)

    def _read(self) -> Iterator[None]:
        various = [self._columns[column.path] for column in self._wanted.various]
        place = 0
        for span in self._row_spans:
            end = place + span.last - span.first
            keys, others = self._keys[:, place:end], [column[place:end] for column in various]

            def outs(
                rows: slice, keys: NDArray[Any] = keys, others: list[NDArray[Any]] = others
            ) -> list[Any]:
                return [*(column[rows] for column in others), *keys[:, rows]]

            # asked for each time: a storage closes shards that were not used for long
            self._storage.shard(span.shard).read_rows(span.first, span.last, outs)
            place = end
            yield
        for column in self._wanted.by_key:
            self._read_keys(column, self._columns[column.path])
            yield

    def _read_keys(self, column: Column, out: NDArray[Any]) -> None:
        place = 0
        for span in self._key_spans[column.slot]:
            end = place + span.last - span.first
            self._storage.shard(span.shard).read(column, span.first, span.last, out[place:end])
            place = end

    def _put_in_order(self, rows: Int64s) -> Iterator[None]:
        """Do so at once with columns of which many samples share a cache line: picking them
        batch by batch would fetch each line many times."""
        wanted, length = self._wanted, len(rows)
        num_bytes = sum(padded(length * column.item_bytes) for column in wanted.single.values())
        arena = self._memory.given.arena(num_bytes + key_matrix_bytes(len(wanted.one), length))
        single = {
            use: arena.empty((length, *column.shape[1:]), column.dtype)
            for use, column in self._single.items()
        }
        keys = arena.key_matrix(len(wanted.one), length)
        # mode="clip" lets numpy write into `out` directly; rows are in range by construction
        for use, column in self._single.items():
            np.take(column, rows, 0, single[use], mode="clip")
            yield
        for column, out in zip(self._keys, keys, strict=True):
            np.take(column, rows, 0, out, mode="clip")
            yield
        self._single, self._keys = single, keys

    def _ragged_of(self, slot: str, lengths: NDArray[Any]) -> Ragged:
        """Refuses samples that do not have as many keys as their blocks."""
        rows = self._table.num_rows[self._window.blocks]
        found = np.add.reduceat(lengths, np.cumsum(rows) - rows, dtype=np.int64).tolist()
        for block, span, count in zip(self._in_shard, self._key_spans[slot], found, strict=True):
            if count != span.last - span.first:
                raise UserError(
                    f"{self._storage.shard(span.shard).path}: block {block} of slot {slot!r} has "
                    f"{span.last - span.first} keys, but its samples {count}: the shard is "
                    "damaged; prepare the dataset again"
                )
        return Ragged(lengths)

    def _whole_slots(self) -> dict[str, Keys]:
        return {
            slot.name: Keys(
                self._columns[slot.keys.path],
                self._ragged[slot.name].offsets(),
                self._columns[slot.weights.path] if slot.weights else None,
            )
            for slot in self._wanted.many
        }

    def cut(self, first: int, last: int) -> SampleRows:
        """The rows first .. last - 1 of those that batches want."""
        slots = one_key_slots(self._wanted.one, self._keys[:, first:last])
        for name, keys in self._ready.items():
            slots[name] = keys.cut(first, last)
        if self._rows is not None and self._wide:
            rows = self._rows[first:last]
            slots.update(_result(self._pick(rows, self._wide, self._memory.batches)))
        single = {use: column[first:last] for use, column in self._single.items()}
        label = self._wanted.only_label
        if label is not None:
            single["labels"] = single["labels"][:, label : label + 1]
        return SampleRows(slots, **single, sample_ids=self._ids[first:last])

    def _is_wide(self, slot: ManyColumns) -> bool:
        """Whether a sample's keys fill cache lines of their own. Then nothing is lost by picking
        them just before they are needed, and much memory is saved."""
        return self._columns[slot.keys.path].nbytes >= _WIDE_BYTES * self._window.num_rows

    def _pick(
        self, rows: Int64s, many: Sequence[ManyColumns], memory: BufferPool
    ) -> Generator[None, None, dict[str, Keys]]:
        """Copies of the keys of some rows, slot by slot."""
        picked = {}
        for slot in many:
            picked[slot.name] = self._ragged[slot.name].pick(rows)
            yield
        num_bytes = 0
        for slot in many:
            count = picked[slot.name].num_keys
            num_bytes += padded(count * slot.keys.item_bytes)
            num_bytes += padded(count * slot.weights.item_bytes) if slot.weights else 0
        arena = memory.arena(num_bytes)

        def take(column: Column, chosen: PickedKeys) -> NDArray[Any]:
            out = arena.empty((chosen.num_keys,), column.dtype)
            return chosen.take(self._columns[column.path], out)

        slots = {}
        for slot in many:
            chosen = picked[slot.name]
            keys = take(slot.keys, chosen)
            weights = take(slot.weights, chosen) if slot.weights else None
            slots[slot.name] = Keys(keys, chosen.offsets, weights)
            yield
        return slots


def _result(steps: Generator[None, None, _T]) -> _T:
    """What a generator returns, all of its steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: _T = end.value
            return value


class WindowLoader:
    """Reads windows and picks rows from them; buffers are used again, so memory does not grow."""

    def __init__(
        self, dataset: Dataset, table: BlockTable, selection: ColumnSelection, read_ahead: int
    ) -> None:
        self._wanted = SelectedColumns.of(dataset, selection)
        self._table = table
        self._storage = Storage(dataset, self._wanted.columns)
        in_use = read_ahead + _BATCHES_IN_USE
        self._memory = Memory(BufferPool(in_use), BufferPool(_WINDOWS_IN_USE), BufferPool(in_use))

    def open(self, window: Window) -> None:
        """Open the window's shards, and so compare them with the manifest."""
        for number in sorted(set(self._table.shard[window.blocks].tolist())):
            self._storage.shard(number)

    def begin(self, window: Window, rows: Int64s | None) -> LoadedWindow:
        """A window to load for batches that want these of its rows, in that order (None: all)."""
        return LoadedWindow(window, rows, self._table, self._storage, self._wanted, self._memory)

    def close(self) -> None:
        """Close the shards."""
        self._storage.close()
