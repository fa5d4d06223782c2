"""Whatever ranks do, starting them from pytest comes back in time and leaves nothing behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from tests.mpi_run import TOKEN, mpirun

PROGRAM = """
import os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
print(f"rank {world.rank} of {world.size}", flush=True)
if sys.argv[1] == "raise" and world.rank == 1:
    raise RuntimeError("rank 1 has had enough")
if sys.argv[1] == "hang" and world.rank == 1:
    try:
        os.setsid()  # out of the process group, unless the launcher did so already
    except PermissionError:
        pass
    time.sleep(600)
world.Barrier()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_ranks_that_end_well(program: Path) -> None:
    outcome = mpirun(3, [program, "end"], timeout=100)
    outcome.check()
    assert all(f"rank {number} of 3" in outcome.output for number in range(3))


def test_one_rank_that_raises_ends_the_others(program: Path) -> None:
    outcome = mpirun(3, [program, "raise"], timeout=100)
    assert outcome.returncode != 0
    assert not outcome.timed_out
    with pytest.raises(pytest.fail.Exception, match="rank 1 has had enough"):
        outcome.check()


def test_ranks_that_hang_are_killed_wherever_they_are(program: Path) -> None:
    started = time.monotonic()
    outcome = mpirun(2, [program, "hang"], timeout=8, environment={"MARK": str(program)})
    assert outcome.timed_out
    assert time.monotonic() - started < 60
    with pytest.raises(pytest.fail.Exception, match="did not end in time"):
        outcome.check()
    assert [pid for pid in psutil.pids() if _carries(pid, str(program))] == []


def _carries(pid: int, mark: str) -> bool:
    try:
        process = psutil.Process(pid)
        environment = process.environ()
        alive = process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False
    return alive and pid != os.getpid() and TOKEN in environment and environment.get("MARK") == mark
