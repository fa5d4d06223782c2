"""Waiting looks less often the longer it takes, and never too seldom."""

import time

import pytest

from heterps_hpc.runtime import waiting


class SimulatedTime:
    """A clock that only naps, and looks of a given length, move."""

    def __init__(self, ends_at: float, seconds_per_look: float = 1e-5) -> None:
        self.now, self.looks, self.ends_at = 0.0, 0, ends_at
        self._seconds_per_look = seconds_per_look

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def is_over(self) -> bool:
        over = self.now >= self.ends_at
        self.looks += 1
        self.now += self._seconds_per_look
        return over


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> SimulatedTime:
    clock = SimulatedTime(ends_at=request.param)
    monkeypatch.setattr(waiting, "time", clock)
    waiting.wait_until(clock.is_over)
    return clock


@pytest.mark.parametrize("simulated", [0.0, 1e-4, 1e-3, 0.01, 0.1, 10.0], indirect=True)
def test_what_comes_is_seen_soon(simulated: SimulatedTime) -> None:
    late = simulated.now - simulated.ends_at
    assert late <= max(1.2e-4, min(simulated.ends_at / 12, 6e-4))


@pytest.mark.parametrize("simulated", [1.0], indirect=True)
def test_a_long_wait_takes_little_of_a_core(simulated: SimulatedTime) -> None:
    assert simulated.looks * 1e-5 < 0.03 * simulated.now


def test_of_real_time() -> None:
    ends_at = time.perf_counter() + 0.02
    waiting.wait_until(lambda: time.perf_counter() > ends_at)
    assert time.perf_counter() > ends_at


def test_looks_that_find_nothing_are_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulatedTime(ends_at=0.1)
    monkeypatch.setattr(waiting, "time", clock)
    assert waiting.wait_until(clock.is_over) == pytest.approx(1e-5)  # the one that found it


def test_looks_that_move_data_are_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulatedTime(ends_at=0.1)
    monkeypatch.setattr(waiting, "time", clock)

    def receive() -> bool:
        over = clock.is_over()
        if clock.looks in (20, 30):
            clock.now += 0.004  # a part of a message
        return over

    assert waiting.wait_until(receive) == pytest.approx(0.008, rel=0.01)
