"""A rank's sparse role: pull and send the rows of batch t+s, then receive and push batch t.

Pooled rows and their gradients lie in one matrix per reading stage, with a batch's rows in order.
Every replica's share of a micro-batch is then a contiguous block of the matrix, which is sent
from and received into directly: no packing on this side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from heterps_hpc.dataset import Batch
from heterps_hpc.model import Lookup
from heterps_hpc.phases import Phase
from heterps_hpc.row_ranges import Range, replica_ranges
from heterps_hpc.runtime.exchange.routes import Outlet
from heterps_hpc.runtime.exchange.transport import Arrival, Exchange, Lane, LocalArrival
from heterps_hpc.runtime.exchange.wire import Wire
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.tables import KeyList, Matrix, Pulled, TableShards

ReplicaRanks = Callable[[int], list[int]]  # stage → world ranks


@dataclass(frozen=True)
class Ahead:
    """A batch that is pulled but not yet pushed: what a checkpoint keeps of it."""

    rows: dict[Lookup, Matrix]  # pooled
    absent: dict[Lookup, KeyList]  # keys without a row, as they were not admitted yet


class SparseRole:
    """Pulls ahead and pushes behind; `ring` batches may be under way."""

    def __init__(
        self,
        shards: TableShards,
        outlets: list[Outlet],
        ranks_of_stage: ReplicaRanks,
        exchange: Exchange,
        *,
        batch_size: int,
        num_micro_batches: int,
        ring: int,
        dtype: torch.dtype,
        wire: Wire,
        watch: PhaseTimer,
    ) -> None:
        self.shards = shards
        self._outlets = outlets
        self._ranks_of_stage = ranks_of_stage
        self._exchange = exchange
        self._num_micro_batches = num_micro_batches
        self._ring = ring
        self._wire = wire
        self._watch = watch
        self._pulled: dict[int, Pulled] = {}
        self._arrivals: list[tuple[torch.Tensor, Arrival | LocalArrival]] = []
        widths = [outlet.width for outlet in outlets]
        self._rows = [
            [torch.zeros(batch_size, width, dtype=dtype) for width in widths] for _ in range(ring)
        ]
        self._wired = self._rows
        if wire.dtype != dtype:
            self._wired = [
                [torch.zeros(batch_size, width, dtype=wire.dtype) for width in widths]
                for _ in range(ring)
            ]
        self._gradients = [torch.zeros(batch_size, width, dtype=wire.dtype) for width in widths]
        self._dtype = dtype

    def pull(self, step: int, batch: Batch) -> None:
        """Resolve and pool the batch's rows and start to send them."""
        slot = step % self._ring
        self._exchange.settle(Lane.ROWS, step - self._ring)
        with self._watch.phase(Phase.PULL):
            views = self._views(self._rows[slot], batch.num_rows)
            first = {lookup: columns[0] for lookup, columns in views.items()}
            self._pulled[step] = self.shards.pull(batch, first, train=True)
            for columns in views.values():
                for further in columns[1:]:
                    further[:] = columns[0]
        self._send(step, batch.num_rows)

    def evaluate(self, step: int, batch: Batch) -> None:
        """Pull without creating rows or keeping anything, and start to send."""
        slot = step % self._ring
        self._exchange.settle(Lane.ROWS, step - self._ring)
        views = self._views(self._rows[slot], batch.num_rows)
        for matrix in self._rows[slot]:
            matrix[: batch.num_rows] = 0
        self.shards.pull(batch, {key: value[0] for key, value in views.items()}, train=False)
        for columns in views.values():
            for further in columns[1:]:
                further[:] = columns[0]
        self._send(step, batch.num_rows)

    def expect_gradients(self, step: int, num_rows: int) -> None:
        """Post the receives of a batch's gradients."""
        for index, outlet in enumerate(self._outlets):
            for rank, ranges in self._shares(outlet, num_rows):
                for first, last in ranges:
                    if first < last:
                        block = self._gradients[index][first:last]
                        arrival = self._exchange.post(Lane.ROW_GRADIENTS, rank, block)
                        self._arrivals.append((block, arrival))

    def push(self, step: int, lr: float) -> None:
        """Wait for the batch's gradients and apply them."""
        pulled = self._receive(step)
        with self._watch.phase(Phase.PUSH):
            matrices = [matrix[: pulled.num_rows] for matrix in self._gradients]
            if self._wire.dtype != self._dtype:
                factor = 1.0 / self._wire.gradient_scale
                matrices = [matrix.to(self._dtype).mul_(factor) for matrix in matrices]
            views = self._views(matrices, pulled.num_rows)
            total = {lookup: _sum(columns) for lookup, columns in views.items()}
            self.shards.push(pulled, total, step, lr)

    def skip(self, step: int) -> None:
        """Take the batch's gradients and throw them away."""
        self.shards.discard(self._receive(step))

    def ahead(self) -> dict[int, Ahead]:
        """The batches that are pulled but not yet pushed."""
        found = {}
        for step, pulled in self._pulled.items():
            views = self._views(self._rows[step % self._ring], pulled.num_rows)
            rows = {lookup: columns[0] for lookup, columns in views.items()}
            found[step] = Ahead(rows, pulled.absent())
        return found

    def restore_ahead(self, step: int, batch: Batch, ahead: Ahead) -> None:
        """Resolve a batch again, but send the rows that were pooled before the checkpoint."""
        views = self._views(self._rows[step % self._ring], batch.num_rows)
        first = {lookup: columns[0] for lookup, columns in views.items()}
        self._pulled[step] = self.shards.pull(batch, first, train=True, absent=ahead.absent)
        for lookup, columns in views.items():
            for column in columns:
                column[:] = ahead.rows[lookup]
        self._send(step, batch.num_rows)

    def _send(self, step: int, num_rows: int) -> None:
        slot = step % self._ring
        with self._watch.phase(Phase.SEND):
            for index, outlet in enumerate(self._outlets):
                matrix = self._wired[slot][index]
                if self._wire.dtype != self._dtype:
                    matrix[:num_rows].copy_(self._rows[slot][index][:num_rows])
                shares = self._shares(outlet, num_rows)
                for micro_batch in range(self._num_micro_batches):
                    for rank, ranges in shares:
                        first, last = ranges[micro_batch]
                        if first < last:
                            self._exchange.send(Lane.ROWS, rank, step, matrix[first:last])

    def _receive(self, step: int) -> Pulled:
        with self._watch.phase(Phase.WAIT_GRADIENTS):
            for block, arrival in self._arrivals:
                data = arrival.wait()
                if data is not block:
                    block.copy_(data)
            self._arrivals.clear()
        return self._pulled.pop(step)

    def _shares(self, outlet: Outlet, num_rows: int) -> list[tuple[int, list[Range]]]:
        """The replicas of the reading stage, each with its rows of every micro-batch."""
        ranks = self._ranks_of_stage(outlet.stage)
        return [
            (rank, replica_ranges(num_rows, self._num_micro_batches, len(ranks), replica))
            for replica, rank in enumerate(ranks)
        ]

    def _views(self, matrices: list[torch.Tensor], num_rows: int) -> dict[Lookup, list[Matrix]]:
        """The columns of every look-up, in each of the matrices that have it."""
        views: dict[Lookup, list[Matrix]] = {}
        for outlet, matrix in zip(self._outlets, matrices, strict=True):
            array = matrix.numpy()[:num_rows]
            for pull in outlet.pulls:
                columns = array[:, pull.column : pull.column + pull.width]
                views.setdefault(pull.lookup, []).append(columns)
        return views


def _sum(columns: list[Matrix]) -> Matrix:
    return columns[0] if len(columns) == 1 else np.sum(columns, axis=0)
