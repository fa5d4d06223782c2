"""Where the time of a rank went: seconds per phase, and a timeline of some batches."""

from __future__ import annotations

import time
from collections import defaultdict
from types import TracebackType
from typing import Any

from heterps_hpc.phases import Phase

_TRACED_STEPS = range(10, 30)


class PhaseTimer:
    """Adds up seconds per phase; phases may nest, and then each counts only its own time."""

    def __init__(self, rank: int = 0, traced_steps: range = _TRACED_STEPS) -> None:
        self.seconds: defaultdict[Phase, float] = defaultdict(float)
        self.events: list[dict[str, Any]] = []  # Chrome's trace format
        self.step = 0
        self.current = Phase.START
        self.count = (
            0  # grows with everything that happens: the watchdog sees that we make progress
        )
        self.peer: int | None = None  # the rank that the current phase waits for
        self._rank = rank
        self._origin = time.perf_counter()
        self._traced_steps = traced_steps
        self._stack: list[tuple[Phase, float, float]] = []  # phase, began, seconds of inner phases

    def phase(self, name: Phase) -> _Phase:
        """A context in which time counts for that phase."""
        return _Phase(self, name)

    def restart(self) -> None:
        """Forget what was counted so far; the timeline begins now."""
        self.seconds.clear()
        self._origin = time.perf_counter()

    def begin(self, name: Phase) -> None:
        """Start a phase."""
        self.current = name
        self.count += 1
        self.peer = None
        self._stack.append((name, time.perf_counter(), 0.0))

    def tick(self) -> None:
        """Long work made progress."""
        self.count += 1

    def waits_for(self, peer: int) -> None:
        """The current phase cannot continue without that rank."""
        self.peer = peer

    def end(self) -> None:
        """End the innermost phase."""
        self.count += 1
        self.peer = None
        name, began, inner = self._stack.pop()
        now = time.perf_counter()
        self.seconds[name] += now - began - inner
        if self._stack:
            outer, outer_began, outer_inner = self._stack[-1]
            self._stack[-1] = (outer, outer_began, outer_inner + now - began)
            self.current = outer
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.end()
