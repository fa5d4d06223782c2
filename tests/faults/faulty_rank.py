"""The rank program with a fault built in, by HETERPS_FAULT: what happens, where, on which rank.

    {"rank": 1, "at": "phase", "count": 40, "do": "kill"}     before the 40th phase of its work
    {"rank": 0, "at": "fsync", "count": 2, "do": "kill"}      before its second fsync, and so on
    {"rank": 2, "at": "step", "count": 5, "do": "raise"}

do: kill, stop (SIGSTOP), signal (SIGUSR1), full (no space left, from then on), full once, raise,
sleep,
unwritable (nothing new in the run's logs from then on, and SIGSTOP).
"""

from __future__ import annotations

import errno
import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

from mpi4py import MPI

from heterps_hpc.checkpoint import store
from heterps_hpc.runtime import rank_main
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.state import saver
from heterps_hpc.runtime.training import Training

FAULT = json.loads(os.environ.get("HETERPS_FAULT", "{}"))
PLACES: dict[str, tuple[Any, str]] = {
    "phase": (PhaseTimer, "begin"),
    "check": (rank_main, "check_world"),
    "step": (Training, "_one_step"),
    "capture": (Rank, "capture"),
    "write": (os, "pwrite"),
    "fsync": (os, "fsync"),
    "rename": (pathlib.Path, "replace"),
    "publish": (saver, "publish"),
    "sync directory": (store, "sync_directory"),
    "sweep": (saver, "keep_last"),
}


def happen() -> None:
    """The fault itself."""
    do = FAULT["do"]
    if do == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif do == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif do == "signal":
        os.kill(os.getpid(), signal.SIGUSR1)
    elif do == "sleep":
        time.sleep(FAULT["seconds"])
    elif do == "unwritable":
        logs = pathlib.Path(sys.argv[1]) / "logs"
        logs.rename(logs.with_name("old logs"))
        logs.touch()  # a file where a folder should be: root may write into any folder
        os.kill(os.getpid(), signal.SIGSTOP)
    elif do in ("full", "full once"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    else:
        raise RuntimeError("a fault that was asked for")


def install() -> None:
    """Put the fault before the n-th call of a function."""
    owner, name = PLACES[FAULT["at"]]
    original = getattr(owner, name)
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == FAULT["count"] or (FAULT["do"] == "full" and calls > FAULT["count"]):
            time.sleep(FAULT.get("delay", 0.0))
            happen()
        return original(*args, **kwargs)

    setattr(owner, name, call)


if FAULT and FAULT["rank"] == MPI.COMM_WORLD.rank:
    install()
sys.exit(rank_main.main(sys.argv[1:]))
