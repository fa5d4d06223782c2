"""Seconds of phases: each its own, by the clock and of the processor."""

import pytest

from heterps_hpc.phases import Phase
from heterps_hpc.runtime.health import phase_timer
from heterps_hpc.runtime.health.phase_timer import PhaseTimer


class Clocks:
    """Seconds that pass, and those in which this thread has the processor."""

    def __init__(self) -> None:
        self.now = self.worked = 0.0

    def pass_by(self, seconds: float, worked: float = 0.0) -> None:
        self.now += seconds
        self.worked += worked

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(phase_timer, "time", clocks)
    return clocks


def test_nested_phases_count_their_own_seconds(clocks: Clocks) -> None:
    timer = PhaseTimer()
    timer.processor_clock = lambda: clocks.worked
    with timer.phase(Phase.FORWARD):
        clocks.pass_by(3.0, worked=1.0)
        with timer.phase(Phase.WAIT_INPUTS):
            clocks.pass_by(2.0, worked=0.1)
        clocks.pass_by(1.0, worked=0.5)
    assert timer.seconds == {Phase.FORWARD: 4.0, Phase.WAIT_INPUTS: 2.0}
    assert timer.processor_seconds[Phase.FORWARD] == pytest.approx(1.5)
    assert timer.processor_seconds[Phase.WAIT_INPUTS] == pytest.approx(0.1)


def test_all_of_an_evaluation_is_outside_of_training(clocks: Clocks) -> None:
    timer = PhaseTimer()
    timer.restart()
    with timer.phase(Phase.FORWARD):
        clocks.pass_by(3.0)
    with timer.phase(Phase.EVALUATE):
        clocks.pass_by(1.0)
        with timer.phase(Phase.FORWARD):
            clocks.pass_by(4.0)
        with timer.phase(Phase.WAIT_INPUTS):
            clocks.pass_by(2.0)
            timer.count_as(Phase.TRANSFER, 0.5)
    assert timer.seconds == {Phase.FORWARD: 3.0, Phase.EVALUATE: 7.0}
    assert timer.training_seconds() == 3.0


def test_what_a_wait_moved_is_no_waiting(clocks: Clocks) -> None:
    timer = PhaseTimer()
    with timer.phase(Phase.WAIT_INPUTS):
        clocks.pass_by(5.0)
        timer.count_as(Phase.TRANSFER, 2.0)
    assert timer.seconds == {Phase.WAIT_INPUTS: 3.0, Phase.TRANSFER: 2.0}


def test_without_a_clock_of_the_processor_nothing_is_counted(clocks: Clocks) -> None:
    timer = PhaseTimer()
    with timer.phase(Phase.PULL):
        clocks.pass_by(1.0, worked=1.0)
    assert timer.processor_seconds[Phase.PULL] == 0.0


def test_what_a_used_up_quota_takes_is_of_the_phase_that_used_it(clocks: Clocks) -> None:
    """The kernel stops a thread over its quota when it asks for its processor time."""
    timer = PhaseTimer()
    seen = 0.0

    def asked() -> float:
        nonlocal seen
        used, seen = clocks.worked - seen, clocks.worked
        clocks.pass_by(used / 4)
        return clocks.worked

    timer.processor_clock = asked
    with timer.phase(Phase.PULL):
        clocks.pass_by(1.0, worked=1.0)
    with timer.phase(Phase.PUSH):
        clocks.pass_by(1.0, worked=1.0)
    assert timer.seconds == {Phase.PULL: 1.25, Phase.PUSH: 1.25}
