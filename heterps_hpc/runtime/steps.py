"""Steps: the batches of a run numbered from 0 through all epochs."""

from __future__ import annotations

from heterps_hpc.config import TrainSpec
from heterps_hpc.dataset import Order, Position
from heterps_hpc.errors import UserError


class Steps:
    """Which batch of which epoch a step is, and how many rows it has."""

    def __init__(self, order: Order, train: TrainSpec) -> None:
        self._order = order
        if order.num_batches == 0:
            raise UserError(
                "the training data gives no batch; it is empty, or shorter than one batch with "
                "`drop_last: true`"
            )
        self.total = train.steps or (train.epochs or 1) * order.num_batches

    def position(self, step: int) -> Position:
        """Where the step's batch lies in the data."""
        epoch, batch = divmod(step, self._order.num_batches)
        return Position(epoch=epoch, batch=batch)

    def num_rows(self, step: int) -> int:
        """Samples of the step's batch."""
        return self._order.batch_rows(step % self._order.num_batches)
