"""Decisions that all ranks must take at the same batch, without making anyone wait.

Every rank casts a vote at the start of every batch and reads the outcome so many batches later
that all ranks have certainly voted: a rank that starts batch t has the rows of batch t, so every
sparse rank has started batch t - staleness.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

GO_ON, SAVE, STOP = 0, 1, 2  # what a vote may ask for; the largest counts


class Votes:
    """One small non-blocking reduction per batch: the outcome is the largest vote."""

    def __init__(self, comm: MPI.Intracomm, lag: int) -> None:
        self._comm = comm
        self.lag = lag  # batches from a vote to its outcome
        self._open: dict[int, tuple[MPI.Request, np.ndarray, np.ndarray]] = {}

    def cast(self, step: int, vote: int) -> None:
        """Vote at the start of a batch."""
        mine = np.array([vote], dtype=np.int32)
        most = np.zeros(1, dtype=np.int32)
        request = self._comm.Iallreduce(mine, most, op=MPI.MAX)
        self._open[step] = (request, mine, most)

    def outcome(self, step: int) -> int:
        """What all ranks decided for the start of this batch (0 at the start of a run)."""
        return self._close(step - self.lag)

    def finish(self) -> None:
        """Complete the votes that nobody will ask about."""
        for step in sorted(self._open):
            self._close(step)

    def _close(self, step: int) -> int:
        if step not in self._open:
            return 0
        request, _, most = self._open.pop(step)
        request.Wait()
        return int(most[0])
