"""What a rank does when nothing has moved for long; ranks that really stop are in tests/faults."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.config import WatchSpec
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.heartbeats import read_beats
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.health import watchdog
from heterps_hpc.runtime.health.heartbeat import NodeHeartbeats
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.health.watchdog import Watchdog
from tests.launch.values import make_cluster, make_layout


class World:
    """In place of MPI: notes that the world was ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.COMM_WORLD = self

    def Abort(self, code: int) -> None:
        assert code == ExitCode.STALLED
        self.ended.set()


def test_heartbeats_do_not_wait_for_a_busy_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank that writes those of its node would be taken for silent."""

    def wait(_: int) -> None:
        raise AssertionError("a disk may take minutes")

    monkeypatch.setattr(os, "fsync", wait)
    run, layout = RunDir(tmp_path).create(), make_layout(make_cluster(), ("cpu", 1))
    beats = NodeHeartbeats(watchdog.MPI.COMM_SELF, layout, run, every=0.0)
    beats.beat(PhaseTimer())
    assert [beat.rank for beat in read_beats(run)] == [0]


@pytest.mark.parametrize("moves_again", [False, True])
def test_a_run_that_moves_again_was_only_slow(
    moves_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    monkeypatch.setattr(watchdog, "MPI", world)
    monkeypatch.setattr(watchdog, "_SECONDS_FOR_STACKS", 1.0)
    run = RunDir(tmp_path).create()
    timer = PhaseTimer()
    spec = WatchSpec.parse({"stall_seconds": 0.2, "heartbeat_seconds": 0.04}, "test")
    with Watchdog(0, make_layout(make_cluster(), ("cpu", 1)), run, spec, timer).running():
        while not run.stack(0).exists():
            time.sleep(0.01)
        end = time.monotonic() + 1.5
        while moves_again and time.monotonic() < end:
            timer.tick()
            time.sleep(0.01)
        assert world.ended.wait(0.0 if moves_again else 10.0) is not moves_again
        assert bool(events.read(run).last(events.Stalled)) is not moves_again


def test_the_report_waits_for_the_stacks_of_ranks_that_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine they are late; of a rank that shows no life nobody expects them."""
    world = World()
    monkeypatch.setattr(watchdog, "MPI", world)
    monkeypatch.setattr(watchdog, "_SECONDS_FOR_STACKS", 0.1)
    run = RunDir(tmp_path).create()
    run.stack(1).write_text("of an earlier stall")
    os.utime(run.stack(1), (1e9, 1e9))
    spec = WatchSpec.parse({"stall_seconds": 0.2, "heartbeat_seconds": 0.04}, "test")
    layout = make_layout(make_cluster(), ("cpu", 3))
    with Watchdog(0, layout, run, spec, PhaseTimer()).running():
        while not run.stack(0).exists():
            (run.heartbeats / "start-00001").touch()
            time.sleep(0.01)
        time.sleep(0.5)
        assert not events.read(run).last(events.Stalled)
        run.stack(1).write_text("where it waits\n")
        assert world.ended.wait(10.0)
    (report,) = run.logs.glob("stall-*.txt")
    text = report.read_text()
    assert "rank 1:\nwhere it waits\n" in text
    assert text.endswith("rank 2:\nno stack: the rank is silent\n")


def test_a_second_stall_is_reported_where_only_others_moved_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    monkeypatch.setattr(watchdog, "MPI", world)
    run = RunDir(tmp_path).create()
    looks: list[bool] = []

    def all_stand_still(self: Watchdog) -> bool:
        looks.append(len(looks) not in range(1, 4))  # another rank moves in the first stall
        return looks[-1]

    monkeypatch.setattr(Watchdog, "_all_stand_still", all_stand_still)
    spec = WatchSpec.parse({"stall_seconds": 0.2, "heartbeat_seconds": 0.04}, "test")
    layout = make_layout(make_cluster(), ("cpu", 1))
    with Watchdog(0, layout, run, spec, PhaseTimer()).running():
        assert world.ended.wait(20.0)
    assert events.read(run).last(events.Stalled) is not None
