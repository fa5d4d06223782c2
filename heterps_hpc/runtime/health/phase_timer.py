"""Where the time of a rank went: seconds per phase, and a timeline of some batches.

Phases are those of the host. Where a rank computes on a device, the device's own seconds are
counted apart: it is still busy with one phase while the host is in the next.

An evaluation computes and waits as training does; all of that is evaluation, whatever its phases.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heterps_hpc.phases import OUTSIDE_TRAINING, Phase
from heterps_hpc.runtime.device import Device, Mark
from heterps_hpc.runtime.stopwatch import Stopwatch

_TRACED_STEPS = range(10, 30)
_ON_DEVICE = frozenset((Phase.ASSEMBLE, Phase.FORWARD, Phase.BACKWARD, Phase.CLIP, Phase.UPDATE))


@dataclass(slots=True)
class _Open:
    """A phase that has begun, and what phases inside it took."""

    name: Phase
    counted: Phase  # itself, or the evaluation or save around it
    began: float
    worked: float  # processor time of this thread, then
    inner: float = 0.0
    inner_worked: float = 0.0


class PhaseTimer:
    """Adds up seconds per phase; phases may nest, and then each counts only its own time."""

    def __init__(self, rank: int = 0, traced_steps: range = _TRACED_STEPS) -> None:
        self.seconds: defaultdict[Phase, float] = defaultdict(float)
        # processor time of this thread, with a clock for it: time.thread_time takes microseconds
        self.processor_seconds: defaultdict[Phase, float] = defaultdict(float)
        self.processor_clock: Callable[[], float] = lambda: 0.0
        self.events: list[dict[str, Any]] = []  # Chrome's trace format
        self.step = 0
        self.current = Phase.START
        # grows with everything that happens, so that the watchdog sees progress
        self.count = 0
        self.peer: int | None = None  # the rank that the current phase waits for
        self.first_step: int | None = None  # of this start, once it trains
        self.pass_batches = (0, 0)  # done and in all, of a pass over test data
        self._rank = rank
        self._origin = time.perf_counter()
        self._traced_steps = traced_steps
        self._stack: list[_Open] = []
        self._device: Device | None = None
        self._on_device: Stopwatch | None = None
        self._marks: list[Mark] = []  # where the open phases of the device began

    def phase(self, name: Phase) -> _Phase:
        """A context in which time counts for that phase."""
        return _Phase(self, name)

    def restart(self, step: int = 0) -> None:
        """Forget what was counted so far; the timeline begins now, before that step."""
        self.seconds.clear()
        self.processor_seconds.clear()
        if self._device is not None:
            self._on_device = Stopwatch(self._device)
        self._origin = time.perf_counter()
        self.step = self.first_step = step

    def training_seconds(self) -> float:
        """Since training began, without evaluations and saves."""
        if self.first_step is None:
            return 0.0
        outside = sum(self.seconds.get(phase, 0.0) for phase in OUTSIDE_TRAINING)
        return max(0.0, time.perf_counter() - self._origin - outside)

    def watch_device(self, device: Device) -> None:
        """Count the device's own seconds from now on, if its events measure time."""
        if device.has_timed_events:
            self._device, self._on_device = device, Stopwatch(device)

    def device_seconds(self) -> dict[str, float]:
        """What the device itself took for each phase; waits until it is done with all of them."""
        return {} if self._on_device is None else self._on_device.seconds()

    def begin(self, name: Phase) -> None:
        """Start a phase."""
        self.current = name
        self.count += 1
        self.peer = None
        around = self._stack[-1].counted if self._stack else None
        counted = around if around in OUTSIDE_TRAINING else name
        worked = self.processor_clock()
        self._stack.append(_Open(name, counted, time.perf_counter(), worked))
        if self._on_device is not None and counted in _ON_DEVICE:
            self._marks.append(self._on_device.start())

    def tick(self) -> None:
        """Long work made progress."""
        self.count += 1

    def waits_for(self, peer: int) -> None:
        """The current phase cannot continue without that rank."""
        self.peer = peer

    def count_as(self, name: Phase, seconds: float) -> None:
        """So much of the innermost phase was really another one."""
        if self._stack and self._stack[-1].counted in OUTSIDE_TRAINING:
            return
        self.seconds[name] += seconds
        if self._stack:
            self._stack[-1].inner += seconds

    def end(self) -> None:
        """End the innermost phase."""
        self.count += 1
        self.peer = None
        ended = self._stack.pop()
        name, counted, began = ended.name, ended.counted, ended.began
        if self._on_device is not None and counted in _ON_DEVICE:
            self._on_device.stop(name, self._marks.pop())
        # this clock first, here and in `begin`: a CPU quota that the phase has used up stops the
        # thread when it asks for it, and that time is the phase's
        worked = self.processor_clock() - ended.worked
        now = time.perf_counter()
        self.seconds[counted] += now - began - ended.inner
        self.processor_seconds[counted] += worked - ended.inner_worked
        if self._stack:
            outer = self._stack[-1]
            outer.inner += now - began
            outer.inner_worked += worked
            self.current = outer.name
        if self.step in self._traced_steps:
            self.events.append(
                {
                    "name": name,
                    "ph": "X",
                    "pid": self._rank,
                    "tid": 0,
                    "ts": (began - self._origin) * 1e6,
                    "dur": (now - began) * 1e6,
                    "args": {"step": self.step},
                }
            )


class _Phase:
    """Context manager of one phase; a class, because a generator costs several times as much."""

    __slots__ = ("_name", "_timer")

    def __init__(self, timer: PhaseTimer, name: Phase) -> None:
        self._timer = timer
        self._name = name

    def __enter__(self) -> None:
        self._timer.begin(self._name)

    def __exit__(self, *_: object) -> None:
        self._timer.end()
