"""What can be observed of training: `Training` calls an observer, which `measure` overrides."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class Observer:
    """Sees what happens on one rank; every method does nothing unless it is overridden."""

    loads_ahead = True  # the next window of data, with the batches of the one before

    def step_begins(self, step: int) -> None:
        """A batch is next."""

    def step_ends(self, step: int) -> None:
        """A batch is done, but for what is overlapped with the next."""

    def wants_stop(self) -> bool:
        """Whether training should end, by the vote of all ranks; asked before every batch."""
        return False

    def layer_begins(self, layer: str) -> None:
        """The forward of a layer is next."""

    def layer_ends(self, layer: str, written: Mapping[str, torch.Tensor]) -> None:
        """The forward of a layer is done."""

    def backward_ends(self) -> None:
        """The backward of a micro-batch is done."""

    def update_begins(self) -> None:
        """The optimizer's step is next."""

    def update_ends(self) -> None:
        """The optimizer's step is done."""

    def processor_clock(self) -> float:
        """Processor seconds of the calling thread, where they are asked for."""
        return 0.0

    def table_worked(self, table: str, seconds: float, processor_seconds: float) -> None:
        """A pull or a push kept the step waiting for so long; called from several threads."""
