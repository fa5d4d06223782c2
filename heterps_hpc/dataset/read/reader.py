"""Gives a rank its batches: a background thread prefetches, the caller gets ready arrays."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.closing import Closing
from heterps_hpc.dataset.columns import Keys, SampleRows
from heterps_hpc.dataset.read.dataset import ColumnSelection, Dataset
from heterps_hpc.dataset.read.order import Order, Position, Window
from heterps_hpc.dataset.read.window import LoadedWindow, WindowLoader
from heterps_hpc.errors import UserError

START = Position()

RowsOf = Callable[[int], Sequence[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as this rank sees it: arrays of its own rows, and the size of the whole."""

    epoch: int
    index: int
    num_rows: int
    sample_ids: NDArray[np.int64]
    slots: Mapping[str, Keys]
    dense: NDArray[np.float32] | None
    labels: NDArray[np.float32] | None
    weight: NDArray[np.float32] | None
    group: NDArray[np.uint64] | None


class Cut(NamedTuple):
    """The places of a window that a batch wants, and whether the batch ends in that window."""

    batch: int
    first: int
    last: int
    chosen: NDArray[np.int64] | None
    complete: bool

    @property
    def num_rows(self) -> int:
        """How many places."""
        return self.last - self.first if self.chosen is None else len(self.chosen)

    def places(self) -> NDArray[np.int64]:
        """Those chosen, or all from the first to before the last."""
        return np.arange(self.first, self.last) if self.chosen is None else self.chosen


class Load(NamedTuple):
    """A window that is being loaded, and the batches that it will be cut into."""

    epoch: int
    cuts: list[Cut]
    window: LoadedWindow


class Reader(Closing):
    """Iterates over batches from a position on; memory: about three windows of the selected
    columns, and the batches that wait or are in use.

    `rows` maps the number of rows of a batch to the ascending ranges of them that this rank
    wants; None means all. `read_ahead` batches are prefetched, and unless `load_ahead` is False the
    next window is loaded while one is used. Errors of the background thread are
    raised by the next `next()`. A reader lives in the process that made it.
    """

    def __init__(
        self,
        dataset: Dataset,
        order: Order,
        selection: ColumnSelection,
        rows: RowsOf | None = None,
        start: Position = START,
        num_epochs: int | None = None,
        read_ahead: int = 2,
        load_ahead: bool = True,
    ) -> None:
        if read_ahead < 1:
            raise UserError(f"read_ahead is {read_ahead}; it must be at least 1 batch")
        if not 0 <= start.batch < order.num_batches or start.epoch < 0:
            raise UserError(f"no {start} in epochs of {order.num_batches} batches")
        self._order = order
        self._picker = RowPicker(rows)
        self._loader = WindowLoader(dataset, order.table, selection, read_ahead)
        self._num_epochs = num_epochs
        self._load_ahead = load_ahead
        self._next = start
        self._pid = os.getpid()
        self._stop = threading.Event()
        # Two plain queues, for they take a tenth of the time of a bounded one: batches go one way
        # and a permit to make another comes back the other.
        self._ready: queue.SimpleQueue[Batch | BaseException | None] = queue.SimpleQueue()
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(read_ahead):
            self._permits.put(None)
        self._over = False
        self._thread = threading.Thread(
            target=self._work, args=(start,), name="heterps-reader", daemon=True
        )
        self._thread.start()

    @property
    def position(self) -> Position:
        """The batch that the next `next()` gives; give it to a new reader to continue from here."""
        return self._next

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if os.getpid() != self._pid:
            raise UserError(
                "this reader was made before a fork, in another process; make one in this process"
            )
        if self._over:
            raise StopIteration
        item = self._ready.get()
        if isinstance(item, Batch):
            self._permits.put(None)
            self._next = self._order.advance(Position(item.epoch, item.index))
            return item
        self._over = True
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """Stop the thread and close all files; safe to call twice."""
        if os.getpid() != self._pid:
            return
        self._stop.set()
        self._over = True
        self._permits.put(None)  # the thread may be waiting for it
        self._thread.join()
        self._loader.close()

    def _work(self, start: Position) -> None:
        try:
            for batch in self._batches(start):
                self._permits.get()
                if self._stop.is_set():
                    return
                self._ready.put(batch)
            self._ready.put(None)
        except BaseException as error:  # handed over to the caller, whatever it is
            self._ready.put(error)

    def _loads(self, start: Position) -> Iterator[Load]:
        """All windows from a position on, still to be loaded."""
        epoch, first = start.epoch, start.batch
        while self._num_epochs is None or epoch < self._num_epochs:
            for window in self._order.windows(epoch, first):
                self._loader.open(window)  # before anything is made of the sizes that it claims
                cuts = self._cuts(window, first)
                yield Load(epoch, cuts, self._begin(window, cuts))
            epoch, first = epoch + 1, 0

    def _batches(self, start: Position) -> Iterator[Batch]:
        """Cut windows into batches; a batch may have rows of several windows.

        With every batch a part of the next window is loaded: all of it at once would hold up the
        batch that needs it, on a rank whose only core also trains.
        """
        parts: list[SampleRows] = []
        loads = self._loads(start)
        load = next(loads, None)
        is_first = True
        while load is not None:
            load.window.load()
            if is_first and self._load_ahead and self._goes_on_after(load):
                load.window.prepare_next()
            is_first = False
            following = None
            done = 0
            for left, cut in zip(range(len(load.cuts), 0, -1), load.cuts, strict=True):
                parts.append(load.window.cut(done, done + cut.num_rows))
                done += cut.num_rows
                if cut.complete:
                    num_rows = self._order.batch_rows(cut.batch)
                    yield _batch(load.epoch, cut.batch, num_rows, SampleRows.join(parts))
                    parts = []
                if self._load_ahead and following is None:
                    following = next(loads, None)
                    share = -(-following.window.num_parts // left) if following else 0
                if following is not None:
                    following.window.load(share)
            load = following or next(loads, None)

    def _goes_on_after(self, load: Load) -> bool:
        """Whether a window follows."""
        is_last = load.cuts[-1].complete and load.cuts[-1].batch == self._order.num_batches - 1
        return not is_last or self._num_epochs is None or load.epoch + 1 < self._num_epochs

    def _begin(self, window: Window, cuts: list[Cut]) -> LoadedWindow:
        # ascending and distinct, so as many as there are rows are all of them
        everything = sum(cut.num_rows for cut in cuts) == window.num_rows
        if window.rows is None and everything:
            return self._loader.begin(window, None)
        wanted = np.concatenate([cut.places() for cut in cuts])
        return self._loader.begin(window, wanted if window.rows is None else window.rows[wanted])

    def _cuts(self, window: Window, first_batch: int) -> list[Cut]:
        """What each batch that meets the window wants of it."""
        order = self._order
        begin = max(window.first, first_batch * order.batch_size)
        end = min(window.last, order.used_rows)
        cuts = []
        for index in range(begin // order.batch_size, -(-end // order.batch_size)):
            base = index * order.batch_size
            num_rows = order.batch_rows(index)
            low, high = max(begin - base, 0), min(end - base, num_rows)
            chosen = self._picker.between(num_rows, low, high)
            shift = base - window.first
            if chosen is not None:
                chosen = chosen + shift
            cuts.append(Cut(index, low + shift, high + shift, chosen, high == num_rows))
        return cuts


class RowPicker:
    """The wanted rows of a batch, worked out once per batch size."""

    def __init__(self, rows: RowsOf | None) -> None:
        self._rows = rows
        self._known: dict[int, NDArray[np.int64]] = {}

    def between(self, num_rows: int, low: int, high: int) -> NDArray[np.int64] | None:
        """The wanted rows among low .. high - 1 of a batch of num_rows; None: all of them."""
        if self._rows is None:
            return None
        wanted = self._known.get(num_rows)
        if wanted is None:
            wanted = self._known[num_rows] = _positions(self._rows(num_rows), num_rows)
        first, last = np.searchsorted(wanted, (low, high))
        return wanted[first:last]


def _positions(ranges: Sequence[tuple[int, int]], num_rows: int) -> NDArray[np.int64]:
    after = 0
    for first, last in ranges:
        if not after <= first <= last <= num_rows:
            raise ValueError(
                f"rows {list(ranges)} of a batch of {num_rows}: the ranges must ascend, must not "
                "overlap and must stay inside the batch"
            )
        after = last
    return np.concatenate([np.arange(0), *(np.arange(first, last) for first, last in ranges)])


def _batch(epoch: int, index: int, num_rows: int, rows: SampleRows) -> Batch:
    assert rows.sample_ids is not None
    return Batch(
        epoch,
        index,
        num_rows,
        rows.sample_ids,
        rows.slots,
        rows.dense,
        rows.labels,
        rows.weight,
        rows.group,
    )
