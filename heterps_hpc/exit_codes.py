"""Exit codes: what a rank, a launcher and the command line mean by each number.

A rank program ends with one of these; the launchers decide by them whether to resume, and hand
them on, so that a script around `heterps` can distinguish a typo from a dead node.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """0 to 6 are outcomes of a run; 10 and above belong to `heterps doctor`."""

    DONE = 0
    """Trained to the end."""

    USER_ERROR = 2
    """What the user wrote cannot run; trying again cannot help."""

    STOPPED = 3
    """Stopped by a signal, after a checkpoint; resuming continues."""

    RANK_FAILED = 4
    """A rank failed or a node died; resuming continues from the last checkpoint."""

    STALLED = 5
    """No progress for too long; resuming continues from the last checkpoint."""

    NOT_SAVED = 6
    """Trained to the end, but the last state could not be saved; resuming does that part again."""

    ONLY_LOCAL = 10
    """doctor: a local run would work, a Slurm run would not."""

    ONLY_SLURM = 11
    """doctor: a Slurm run would work, a local run would not."""

    NOTHING_WORKS = 12
    """doctor: neither a local nor a Slurm run would work."""

    @property
    def resumable(self) -> bool:
        """Whether starting again from the last checkpoint can lead further."""
        return self in (ExitCode.STOPPED, ExitCode.RANK_FAILED, ExitCode.STALLED)


GRAVEST_FIRST = (
    ExitCode.USER_ERROR,
    ExitCode.STALLED,
    ExitCode.RANK_FAILED,
    ExitCode.NOT_SAVED,
    ExitCode.STOPPED,
    ExitCode.DONE,
)
