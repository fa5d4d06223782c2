"""What a dense stage reads from the data set itself: its own rows of labels and dense columns."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from heterps_hpc.dataset import Batch, Want
from heterps_hpc.model import LENGTH_PREFIX
from heterps_hpc.row_ranges import Range
from heterps_hpc.runtime.device import Device


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


def want_of(reads: set[str], *, label: bool, weight: bool) -> Want:
    """The columns that a stage needs."""
    return Want(
        slots=tuple(
            sorted(n.removeprefix(LENGTH_PREFIX) for n in reads if n.startswith(LENGTH_PREFIX))
        ),
        dense="dense" in reads,
        labels=label or "label" in reads,
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
