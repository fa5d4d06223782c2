"""What a rank reads from the data set, step by step.

A rank with tables reads the keys of its slots, for all rows of a batch; a rank of a dense stage
reads its own rows of labels and dense columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from heterps_hpc.config import TrainSpec
from heterps_hpc.dataset import Batch, ColumnSelection, Dataset, Order, Position, Reader
from heterps_hpc.dataset.read.reader import RowsOf
from heterps_hpc.model import LENGTH_PREFIX, LOSS, SCORE
from heterps_hpc.row_ranges import Range
from heterps_hpc.runtime.device import Device

if TYPE_CHECKING:
    from heterps_hpc.runtime.dense import DenseRole
    from heterps_hpc.runtime.rank import Rank


class Feed:
    """One batch of a replica's own data, cut into micro-batches."""

    def __init__(
        self,
        batch: Batch,
        ranges: list[Range],
        reads: set[str],
        dtype: torch.dtype,
        device: Device,
    ) -> None:
        self.batch = batch
        counts = [last - first for first, last in ranges]
        bounds = np.concatenate([[0], np.cumsum(counts)])
        self._blocks = [slice(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
        self._tensors = {
            name: device.upload(torch.from_numpy(_column(batch, name)).to(dtype)) for name in reads
        }
        self._sample_ids = device.upload(torch.from_numpy(batch.sample_ids))

    def rows(self, micro_batch: int) -> slice:
        """The micro-batch's rows within this replica's rows."""
        return self._blocks[micro_batch]

    def tensors(self, micro_batch: int) -> dict[str, torch.Tensor]:
        """The data tensors of a micro-batch."""
        rows = self._blocks[micro_batch]
        return {name: value[rows] for name, value in self._tensors.items()}

    def sample_ids(self, micro_batch: int) -> torch.Tensor:
        """Which samples they are, for random choices that must not depend on ranks."""
        return self._sample_ids[self._blocks[micro_batch]]


def key_selection(rank: Rank) -> ColumnSelection:
    """The columns that a rank's tables need."""
    assert rank.tables is not None
    return ColumnSelection(
        slots=rank.tables.data_slots(),
        dense=False,
        labels=(rank.job.data.label or True) if rank.tables.counters else False,
    )


def selection_of(
    reads: set[str], *, label: bool, weight: bool, label_name: str | None = None
) -> ColumnSelection:
    """The columns that a stage needs; of several labels the one of that name."""
    return ColumnSelection(
        slots=tuple(
            sorted(n.removeprefix(LENGTH_PREFIX) for n in reads if n.startswith(LENGTH_PREFIX))
        ),
        dense="dense" in reads,
        labels=(label_name or True) if label or "label" in reads else False,
        weight=weight,
    )


def _column(batch: Batch, name: str) -> np.ndarray:
    if name.startswith(LENGTH_PREFIX):
        keys = batch.slots[name.removeprefix(LENGTH_PREFIX)]
        if keys.offsets is None:
            return np.ones(len(batch.sample_ids))
        lengths: np.ndarray = np.diff(keys.offsets)
        return lengths
    if name == "label":
        assert batch.labels is not None
        return batch.labels[:, 0]
    if name == "weight" and batch.weight is None:
        return np.ones(len(batch.sample_ids))
    column = batch.dense if name == "dense" else batch.weight
    assert column is not None, f"the reader was not asked for {name!r}"
    return column


class Steps:
    """The batches of a data set numbered from 0 through all epochs: where each is, how long."""

    def __init__(self, order: Order, train: TrainSpec) -> None:
        self.order = order  # of one batch or more
        self.total = train.steps or (train.epochs or 1) * order.num_batches

    def position(self, step: int) -> Position:
        """Where the step's batch lies in the data."""
        epoch, batch = divmod(step, self.order.num_batches)
        return Position(epoch=epoch, batch=batch)

    def num_rows(self, step: int) -> int:
        """Samples of the step's batch."""
        return self.order.batch_rows(step % self.order.num_batches)


def training_steps(rank: Rank) -> Steps:
    """All steps of the rank's job."""
    data, train = rank.job.data, rank.job.train
    order = Order(
        rank.dataset,
        train.batch_size,
        train.seed,
        shuffle=data.shuffle,
        drop_last=data.drop_last,
    )
    return Steps(order, train)


def one_pass(dataset: Dataset, train: TrainSpec) -> Steps:
    """The batches of one pass over a data set, in the order in which it is stored."""
    order = Order(dataset, train.batch_size, train.seed, shuffle=False, drop_last=False)
    return Steps(order, train.model_copy(update={"epochs": 1, "steps": None}))


class Readers:
    """A rank's readers of one data set, all at the same step."""

    def __init__(
        self,
        rank: Rank,
        dataset: Dataset,
        steps: Steps,
        dense: DenseRole | None,
        *,
        first: int = 0,
        weigh: bool = True,
        load_ahead: bool = True,
    ) -> None:
        """`weigh`: also read the weights of whole batches, whose sum divides the loss."""
        self._dataset = dataset
        self._steps = steps
        self._first = first
        self._read_ahead = rank.job.data.read_ahead
        self._load_ahead = load_ahead
        self._dense = dense
        self._keys: Reader | Lookahead | None = None
        self._own: Reader | None = None
        self._weights: Reader | None = None
        has_weight = dataset.manifest.has_weight
        if rank.tables is not None:
            keys, tables = self._open(key_selection(rank)), rank.tables
            self._keys = Lookahead(keys, tables.prefetch) if tables.has_tiers else keys
        if dense is not None:
            self._reads = set(dense.data_reads)
            used = rank.writes(LOSS) or rank.writes(SCORE) or "weight" in self._reads
            selection = selection_of(
                self._reads,
                label=rank.writes(SCORE),
                weight=has_weight and used,
                label_name=rank.job.data.label,
            )
            self._own = self._open(selection, dense.replica_ranges)
            if weigh and has_weight and rank.writes(LOSS):
                self._reads.add("weight")
                self._weights = self._open(
                    ColumnSelection(slots=(), dense=False, labels=False, weight=True)
                )

    def keys(self) -> Batch:
        """The keys of this rank's slots in the next batch."""
        assert self._keys is not None
        return next(self._keys)

    def feed(self) -> Feed:
        """This replica's own data of the next batch."""
        assert self._own is not None
        assert self._dense is not None
        return self._dense.feed(next(self._own), self._reads)

    def weight_sum(self, num_rows: int) -> float:
        """The sum of weights over the whole next batch; its rows, if samples have no weight.

        1 where all weights are 0: such a batch has the loss 0 and no gradients, not 0 / 0.
        """
        if self._weights is None:
            return float(num_rows)
        weight = next(self._weights).weight
        assert weight is not None
        return float(weight.sum(dtype=np.float64)) or 1.0

    def close(self) -> None:
        """Stop reading."""
        for reader in (self._keys, self._own, self._weights):
            if reader is not None:
                reader.close()

    def _open(self, selection: ColumnSelection, rows: RowsOf | None = None) -> Reader:
        return Reader(
            self._dataset,
            self._steps.order,
            selection,
            rows=rows,
            start=self._steps.position(self._first),
            num_epochs=None,
            read_ahead=self._read_ahead,
            load_ahead=self._load_ahead,
        )


class Lookahead:
    """A reader's batches, each shown one batch early: cold rows are then fetched in time."""

    def __init__(self, reader: Reader, show: Callable[[Batch], None]) -> None:
        self._reader = reader
        self._show = show
        self._next: Batch | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        current = next(self._reader) if self._next is None else self._next
        self._next = next(self._reader, None)
        if self._next is not None:
            self._show(self._next)
        return current

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()
