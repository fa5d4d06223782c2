"""A rank's sparse role: pull and send the rows of batch t+s, then receive and push batch t.

Pooled rows and their gradients lie in one matrix per reading stage, with a batch's rows in order.
Every replica's rows of a micro-batch are then a contiguous block of the matrix, which channels
send from and receive into directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from heterps_hpc.dataset import Batch
from heterps_hpc.model import Lookup
from heterps_hpc.phases import Phase
from heterps_hpc.runtime.exchange.channel import POOLED, Channels
from heterps_hpc.runtime.exchange.routes import PooledMatrix
from heterps_hpc.runtime.exchange.transport import MessageKind
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.tables import KeyList, Matrix, Pulled, TableShards


@dataclass(frozen=True)
class Prefetched:
    """A batch that is pulled but not yet pushed: what a checkpoint keeps of it."""

    rows: dict[Lookup, Matrix]  # pooled
    absent: dict[Lookup, KeyList]  # keys without a row, as they were not admitted yet


class SparseRole:
    """Pulls before and pushes after the dense ranks; `ring` batches may be in flight."""

    def __init__(
        self,
        shards: TableShards,
        matrices: Sequence[PooledMatrix],
        channels: Channels,
        *,
        ring: int,
        dtype: torch.dtype,
        timer: PhaseTimer,
    ) -> None:
        self.shards = shards
        self._matrices = matrices
        self._exchange = channels.exchange
        self._num_micro_batches = channels.num_micro_batches
        self._ring = ring
        self._timer = timer
        self._pulled: dict[int, Pulled] = {}

        def make() -> list[torch.Tensor]:
            buffer, num_rows = channels.device.buffer, channels.batch_size
            return [buffer(num_rows, matrix.width, dtype) for matrix in matrices]

        self._rows = [make() for _ in range(ring)]
        self._gradients = make()
        self._senders = [
            [channels.sender(MessageKind.ROWS, route, ring) for route in matrix.routes]
            for matrix in matrices
        ]
        self._receivers = [
            channels.receiver(MessageKind.ROW_GRADIENTS, route, 1, landing=landing)
            for matrix, landing in zip(matrices, self._gradients, strict=True)
            for route in matrix.routes
        ]

    def pull(self, step: int, batch: Batch, *, send: bool = True) -> None:
        """Resolve and pool the batch's rows and start to send them (or keep them for a save)."""
        rows = self._free_rows(step)
        with self._timer.phase(Phase.PULL):
            views = self._views(rows, batch.num_rows)
            first = {lookup: columns[0] for lookup, columns in views.items()}
            self._pulled[step] = self.shards.pull(batch, first, train=True)
            _copy_to_further_stages(views)
        if send:
            self._send(step, batch.num_rows)

    def evaluate(self, step: int, batch: Batch) -> None:
        """Pull without creating rows or keeping anything, and start to send."""
        rows = self._free_rows(step)
        for matrix in rows:
            matrix[: batch.num_rows] = 0
        views = self._views(rows, batch.num_rows)
        self.shards.pull(batch, {key: value[0] for key, value in views.items()}, train=False)
        _copy_to_further_stages(views)
        self._send(step, batch.num_rows)

    def expect_gradients(self, step: int, num_rows: int) -> None:
        """Post the receives of a batch's gradients."""
        for receiver in self._receivers:
            receiver.post(step, num_rows)

    def receive(self, step: int) -> Pulled:
        """Wait for the batch's gradients; then `push` or `skip` it."""
        pulled = self._pulled.pop(step)
        with self._timer.phase(Phase.WAIT_GRADIENTS):
            for receiver in self._receivers:
                receiver.land(step, pulled.num_rows)
        return pulled

    def push(self, step: int, pulled: Pulled, lr: float) -> None:
        """Apply the batch's gradients."""
        with self._timer.phase(Phase.PUSH):
            views = self._views(self._gradients, pulled.num_rows)
            total = {lookup: _sum(columns) for lookup, columns in views.items()}
            self.shards.push(pulled, total, step, lr)

    def skip(self, pulled: Pulled) -> None:
        """Throw the batch's gradients away."""
        self.shards.discard(pulled)

    def prefetched(self) -> dict[int, Prefetched]:
        """The batches that are pulled but not yet pushed."""
        found = {}
        for step, pulled in self._pulled.items():
            views = self._views(self._rows[step % self._ring], pulled.num_rows)
            rows = {lookup: columns[0] for lookup, columns in views.items()}
            found[step] = Prefetched(rows, pulled.absent())
        return found

    def restore_prefetched(
        self, step: int, batch: Batch, prefetched: Prefetched, *, send: bool = True
    ) -> None:
        """Resolve a batch again, but send the rows that were pooled before the checkpoint."""
        views = self._views(self._rows[step % self._ring], batch.num_rows)
        first = {lookup: columns[0] for lookup, columns in views.items()}
        self._pulled[step] = self.shards.pull(batch, first, train=True, absent=prefetched.absent)
        for lookup, columns in views.items():
            for column in columns:
                column[:] = prefetched.rows[lookup]
        if send:
            self._send(step, batch.num_rows)

    def _free_rows(self, step: int) -> list[torch.Tensor]:
        """The matrices of a step, once the batch that used them before has been sent."""
        self._exchange.settle(MessageKind.ROWS, step - self._ring)
        return self._rows[step % self._ring]

    def _send(self, step: int, num_rows: int) -> None:
        with self._timer.phase(Phase.SEND):
            for matrix, senders in zip(self._rows[step % self._ring], self._senders, strict=True):
                for micro_batch in range(self._num_micro_batches):
                    for sender in senders:
                        sender.send(step, num_rows, micro_batch, {POOLED: matrix})

    def _views(self, matrices: list[torch.Tensor], num_rows: int) -> dict[Lookup, list[Matrix]]:
        """The columns of every look-up, in each of the matrices that have it."""
        views: dict[Lookup, list[Matrix]] = {}
        for pooled, matrix in zip(self._matrices, matrices, strict=True):
            array = matrix.numpy()[:num_rows]
            for pull in pooled.pulls:
                columns = array[:, pull.column : pull.column + pull.width]
                views.setdefault(pull.lookup, []).append(columns)
        return views


def _copy_to_further_stages(views: dict[Lookup, list[Matrix]]) -> None:
    for columns in views.values():
        for further in columns[1:]:
            further[:] = columns[0]


def _sum(columns: list[Matrix]) -> Matrix:
    return columns[0] if len(columns) == 1 else np.sum(columns, axis=0)
