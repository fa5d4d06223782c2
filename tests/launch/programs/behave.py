"""A rank that does as RUN_DIR/behave.json orders: leave with a code, wait, fail, die, or stop.

It is started exactly as the trainer is, so it shows what a launcher really does.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from mpi4py import MPI

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.events import RankEnded, record
from heterps_hpc.rundir import RunDir

LIMIT_SECONDS = 60.0  # a forgotten rank ends by itself


def main() -> int:
    run_dir = Path(sys.argv[1])
    component = int(sys.argv[3])
    world = MPI.COMM_WORLD
    orders: dict[str, Any] = json.loads((run_dir / "behave.json").read_text())
    order = orders.get(str(world.rank), orders["default"])
    asked: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
    info = {
        "rank": world.rank,
        "size": world.size,
        "component": component,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "node": os.environ.get("SLURMD_NODENAME"),
        "restart": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        "pid": os.getpid(),
    }
    world.barrier()
    # whole or not at all: tests read it as soon as it is there
    write_atomically(run_dir / f"rank-{world.rank}-{info['restart']}.json", json.dumps(info))
    if order == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if order == "ignore":
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        time.sleep(LIMIT_SECONDS)
        return 1
    if order == "raise":
        raise RuntimeError("as ordered")
    if order == "wait" or (order == "wait first" and info["restart"] == 0):
        give_up = time.monotonic() + LIMIT_SECONDS
        while not asked and time.monotonic() < give_up:
            time.sleep(0.05)
        return leave(run_dir, 3 if asked else 1)
    if order == "fail on order" and info["restart"] == 0:
        give_up = time.monotonic() + LIMIT_SECONDS
        while not (run_dir / "fail").exists() and time.monotonic() < give_up:
            time.sleep(0.05)
        return leave(run_dir, 4)
    return leave(run_dir, int(order) if isinstance(order, int) else 0)


def leave(run_dir: Path, code: int) -> int:
    """Note the code as the trainer does; a stop that all agreed on must not abort the world."""
    if code:
        record(RunDir(run_dir), RankEnded(rank=MPI.COMM_WORLD.rank, code=code))
    if code == 3:
        MPI.Finalize()
    return code


if __name__ == "__main__":
    sys.exit(main())
