"""What of a launcher's output is for people.

When a rank ends the others, mpirun and srun print a banner about it, after the line that gives the
reason. All of it stays in the log; what is shown ends with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_BANNERS = re.compile(
    "|".join(
        (
            # MPICH
            r"Abort\(\d+\) on node \d+",
            r"=+$",
            r"=\s+(BAD TERMINATION|PID \d+|RANK \d+|EXIT CODE|CLEANING UP|KILLED BY|YOU CAN)",
            r"YOUR APPLICATION TERMINATED WITH",
            r"This typically refers to a problem with your application",
            r"Please see the FAQ page for debugging",
            r"\[proxy|\[mpiexec",
            # Open MPI
            r"-{20,}$",
            r"MPI_ABORT was invoked on rank",
            r"(with errorcode|  Proc: \[).*",
            r"NOTE: invoking MPI_ABORT causes",
            r"You may or may not see output from other processes",
            r"exactly when Open MPI kills them",
            r"(mpirun|prterun) (detected|has exited|noticed)",
            # Slurm
            r"srun: (error: .*task|Job step aborted|launch/slurm|Terminating|Force Terminated)",
            r"srun: (forcing job termination|got SIG|Step created|Job \d+ step creation)",
            r"slurmstepd(-\S+)?: error: \*\*\* STEP",
        )
    )
)
_COMPLAINT = re.compile(
    r"error|fatal|fail|cannot|can't|unable|not found|no such|denied|invalid", re.I
)
_RANK_REASON = "heterps: "  # shown once more at the end, with the rank and its log


def is_for_people(line: str) -> bool:
    """Whether a line adds to what the end of the command prints."""
    return bool(line.strip()) and not _BANNERS.match(line) and not line.startswith(_RANK_REASON)


def main_line(lines: Sequence[str]) -> str | None:
    """The line that most likely tells why nothing started: the first complaint, else the last line.

    What follows the first complaint is mostly its consequence, once per rank.
    """
    shown = [line.strip() for line in lines if is_for_people(line)]
    complaints = (line for line in shown if _COMPLAINT.search(line))
    return next(complaints, shown[-1] if shown else None)
