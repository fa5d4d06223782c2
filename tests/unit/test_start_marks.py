"""Ranks that wait for others know which ones are missing, before they can talk to each other."""

import os
import time
from pathlib import Path

import pytest

from heterps_hpc.config import WatchSpec
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.health.heartbeat import StartMarks


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path).create()


def marks(run: RunDir, rank: int) -> StartMarks:
    return StartMarks(run, rank, 4, WatchSpec(heartbeat_seconds=1.0, stall_seconds=0.02))


def wait(mark: StartMarks) -> None:
    mark.beat(1)
    time.sleep(0.03)
    mark.beat(1)


def test_a_start_without_waiting_writes_nothing(run: RunDir) -> None:
    mark = marks(run, 0)
    for count in range(5):
        mark.beat(count)
    assert list(run.heartbeats.iterdir()) == []


def test_ranks_without_a_fresh_mark_are_missing(run: RunDir) -> None:
    for rank in (0, 1, 3):
        wait(marks(run, rank))
    stopped = run.heartbeats / "start-00003"
    os.utime(stopped, (1.0, 1.0))  # it waited once, and then was stopped
    assert marks(run, 0).fresh() == [0, 1]
    assert marks(run, 0).describe_missing().startswith("rank 2, 3 did not start")


def test_a_mark_goes_when_all_ranks_are_there(run: RunDir) -> None:
    mark = marks(run, 0)
    wait(mark)
    mark.remove()
    assert list(run.heartbeats.iterdir()) == []
