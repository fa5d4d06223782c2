"""The last word of a batch script, as a program.

`python -m heterps_hpc.launch.slurm.epilogue RUN_DIR --status N` prints "again" or "end CODE". It
runs inside the job, before the script asks Slurm for the requeue; that stays in the script because
a container may hold this interpreter but not `scontrol`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from heterps_hpc.launch.slurm.verdict import conclude
from heterps_hpc.rundir import RunDir


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
