"""Scores with their labels and weights, kept until someone asks for their quality."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from heterps_hpc.runtime.batches import Feed
    from heterps_hpc.runtime.dense import BatchResult
    from heterps_hpc.runtime.device import HostCopy

Floats = NDArray[np.float64]


class Scored:
    """Scores with their labels and weights, as one rank collects them."""

    def __init__(self) -> None:
        self._before: list[np.ndarray] = []  # columns that a checkpoint kept
        self._blocks: list[tuple[list[HostCopy], Floats, Floats, NDArray[np.int64]]] = []

    def add(self, outcome: BatchResult, feed: Feed) -> None:
        """Keep the scores of one batch."""
        if not outcome.scores:
            return
        batch = feed.batch
        assert batch.labels is not None
        weight = np.ones(len(batch.sample_ids)) if batch.weight is None else batch.weight
        self._blocks.append(
            (
                outcome.scores,  # perhaps still on a device: nobody waits for them here
                batch.labels[:, 0].astype(np.float64),
                weight.astype(np.float64),
                batch.sample_ids,
            )
        )

    def columns(self) -> list[np.ndarray]:
        """Scores, labels, weights and sample ids of all that was kept."""
        parts = [self._before] if self._before else []
        for scores, *others in self._blocks:
            values = [copy.tensor().numpy().astype(np.float64) for copy in scores]
            parts.append([np.concatenate(values), *others])
        if not parts:
            return [np.empty(0), np.empty(0), np.empty(0), np.empty(0, np.int64)]
        return join_columns(parts)

    def take_up(self, columns: list[np.ndarray]) -> None:
        """Continue with what `columns` gave before."""
        self._before, self._blocks = columns, []

    def clear(self) -> None:
        """Drop what was kept."""
        self._before = []
        self._blocks.clear()


def join_columns(gathered: list[list[np.ndarray]]) -> list[np.ndarray]:
    """The columns of all ranks end to end."""
    return [np.concatenate(column) for column in zip(*gathered, strict=True)]
