"""Seconds of a device come from its events, and nobody waits for these before asking."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from heterps_hpc.phases import Phase
from heterps_hpc.runtime import stopwatch as module
from heterps_hpc.runtime.device import Device
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.stopwatch import Stopwatch


@dataclass
class LateDevice:
    """A device whose events pass only when the host waits; 2 ms lie between any two."""

    has_timed_events: bool = True
    marks: list[LateMark] = field(default_factory=list)
    num_waits: int = 0

    def mark(self) -> LateMark:
        self.marks.append(LateMark(self, len(self.marks)))
        return self.marks[-1]


@dataclass
class LateMark:
    """The event with that number."""

    device: LateDevice
    number: int
    has_passed: bool = False

    def query(self) -> bool:
        return self.has_passed

    def synchronize(self) -> None:
        self.device.num_waits += 1
        for mark in self.device.marks[: self.number + 1]:
            mark.has_passed = True

    def elapsed_time(self, end: LateMark) -> float:
        assert self.has_passed
        assert end.has_passed
        return 2.0 * (end.number - self.number)


def test_all_spans_are_read_after_one_wait() -> None:
    device: Any = LateDevice()
    stopwatch = Stopwatch(device)
    first = stopwatch.start()
    second = stopwatch.stop("a", first)
    stopwatch.stop("b", second)
    stopwatch.stop("a", stopwatch.start())
    stopwatch.add("b", 1.0)
    assert device.num_waits == 0
    assert stopwatch.seconds() == pytest.approx({"a": 4e-3, "b": 1.002})
    assert device.num_waits == 1
    assert stopwatch.seconds() == pytest.approx({"a": 4e-3, "b": 1.002})


def test_a_long_run_keeps_no_events_that_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_UNREAD", 3)
    device: Any = LateDevice()
    stopwatch = Stopwatch(device)
    for _ in range(10):
        stopwatch.stop("a", stopwatch.start())
        device.marks[-1].synchronize()
    assert len(stopwatch._unread) <= 3
    assert stopwatch.seconds() == pytest.approx({"a": 20e-3})


def test_phases_of_a_device_are_counted_apart() -> None:
    device: Any = LateDevice()
    timer = PhaseTimer()
    timer.watch_device(device)
    with timer.phase(Phase.FORWARD):
        pass
    timer.restart()  # what was before does not count
    with timer.phase(Phase.FORWARD):
        pass
    with timer.phase(Phase.EVALUATE), timer.phase(Phase.FORWARD):
        pass
    with timer.phase(Phase.SEND):  # the host's alone
        pass
    assert timer.device_seconds() == pytest.approx({"forward": 2e-3})
    assert set(timer.seconds) == {Phase.EVALUATE, Phase.FORWARD, Phase.SEND}


def test_without_timed_events_the_clock_is_the_hosts() -> None:
    host = Device(torch.device("cpu"))
    timer = PhaseTimer()
    timer.watch_device(host)
    with timer.phase(Phase.FORWARD):
        pass
    assert timer.device_seconds() == {}
    stopwatch = Stopwatch(host)
    stopwatch.stop("a", stopwatch.start())
    assert 0 <= stopwatch.seconds()["a"] < 10
