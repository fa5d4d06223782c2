"""The end of a batch script, as a program.

`python -m heterps_hpc.launch.slurm.epilogue RUN_DIR --status N --ranks R` prints "again" or
"end CODE". It runs inside the job, before the script asks Slurm for the requeue; that stays in the
script because a container may hold this interpreter but not `scontrol`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from heterps_hpc import events
from heterps_hpc.config import Job
from heterps_hpc.events import Ended, LayoutChangeWanted
from heterps_hpc.launch.failure import outcome
from heterps_hpc.launch.restart_policy import allows_restart
from heterps_hpc.rundir import RunDir


def conclude(run: RunDir, status: int, num_ranks: int) -> str:
    """Decide whether the run continues, record it, and print it in the script's format."""
    history = events.read(run)
    code = outcome(history, num_ranks, status)
    again = allows_restart(history, code, Job.parse_saved(run.job).launch.max_restarts)
    if history.newest_start.last(LayoutChangeWanted) is not None:
        again = False  # another layout is another job
    restart = max(0, history.num_starts - 1)
    end = Ended(code=int(code), status=status, restart=restart, again=again)
    events.record_if_possible(run, end)
    return "again" if again else f"end {int(code)}"


def main() -> int:
    """Entry for the batch script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--status", type=int, required=True, help="of srun")
    parser.add_argument("--ranks", type=int, required=True, help="that srun started")
    found = parser.parse_args()
    sys.stdout.write(conclude(RunDir(found.run_dir), found.status, found.ranks) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
