"""The end of all ranks when one cannot go on: the others would wait for it for ever."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

from mpi4py import MPI

from heterps_hpc.exit_codes import ExitCode

# An abort can overtake what a rank said just before it: without this pause, MPICH's mpirun ended
# without the line in 6 of 40 runs with a wrong layout.
SECONDS_FOR_LAST_WORDS = 1.0
_SECONDS_FOR_RANK_0 = 3.0


def end_world(comm: MPI.Intracomm, code: ExitCode, reason: str) -> NoReturn:
    """Say once what happened, then end all ranks."""
    if code == ExitCode.USER_ERROR and comm.rank != 0:
        time.sleep(_SECONDS_FOR_RANK_0)  # most such errors are everyone's: let one rank speak
    sys.stderr.write(f"heterps: {reason}\n")
    sys.stderr.flush()
    time.sleep(SECONDS_FOR_LAST_WORDS)
    comm.Abort(int(code))
    raise SystemExit(int(code))
