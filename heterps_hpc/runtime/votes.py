"""Decisions that all ranks must take at the same batch, without making anyone wait.

Every rank casts a vote at the start of every batch and reads the outcome so many batches later
that all ranks have certainly voted: a rank that starts batch t has the rows of batch t, so every
sparse rank has started batch t - staleness.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np
from mpi4py import MPI

from heterps_hpc.runtime.waiting import wait_until

CONTINUE, SAVE, STOP = 0, 1, 2  # what a vote may ask for; the largest counts
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopFlag:
    """Whether someone asked this rank to save and stop: Slurm, the launcher or Ctrl-C.

    A signal only sets the flag; training votes by it between batches.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None

    @contextmanager
    def installed(self) -> Iterator[StopFlag]:
        """Signals set the flag until the end of the block."""
        before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = signal.Signals(number)
        # A second Ctrl-C must end us even inside a library that never returns to Python, so it
        # is left to the kernel; the launcher then ends all other ranks.
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


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
        wait_until(request.Test)
        return int(most[0])
