"""The last word of a batch script: has the run ended, or does it go on from its checkpoint?

`python -m heterps_hpc.launch.slurm.after RUN_DIR --status N` prints "again" or "end CODE". It runs
inside the job, before the script asks Slurm for the requeue; that stays in the script because a
container may hold this interpreter but not `scontrol`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from heterps_hpc import history
from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode, outcome
from heterps_hpc.rundir import RunDir


def goes_on(code: ExitCode, restarts: int, max_restarts: int, stop_wanted: bool) -> bool:
    """Whether to queue the job again."""
    return code.resumable and restarts < max_restarts and not stop_wanted


def conclude(run: RunDir, status: int) -> str:
    """Decide, write it into the history, and say it in the script's words."""
    past = history.read(run)
    restarts = history.restarts(past)
    events = history.since_last(past, "start")
    noted = [event["code"] for event in events if event["event"] == "rank_end"]
    stop_wanted = any(event["event"] == "stop_wanted" for event in events)
    code = outcome(status, noted)
    max_restarts = Job.parse_saved(run.job).launch.max_restarts
    again = goes_on(code, restarts, max_restarts, stop_wanted)
    history.record(run, "end", code=int(code), status=status, restart=restarts, again=again)
    return "again" if again else f"end {int(code)}"


def main() -> int:
    """Entry for the batch script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--status", type=int, required=True)
    arguments = parser.parse_args()
    sys.stdout.write(conclude(RunDir(arguments.run_dir), arguments.status) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
