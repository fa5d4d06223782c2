"""Until when the exact solver may think, by the clock of whoever asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

SETTLED = 0.5  # seconds after which the clock's share of the wall's time is known


@dataclass(frozen=True)
class Deadline:
    """A time by some clock: the wall's, or, in benchmarks on busy machines, a core's own."""

    at: float
    clock: Callable[[], float] = time.monotonic
    began: tuple[float, float] = (0.0, 0.0)  # by the clock, and by the wall's

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """So many seconds from now."""
        return cls(clock() + seconds, clock, (clock(), time.monotonic()))

    @property
    def left(self) -> float:
        """Seconds until then, negative once it is over."""
        return self.at - self.clock()

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return self.left < 0

    @property
    def wall_left(self) -> float:
        """Seconds of the wall's clock until then, if this one goes on as fast as so far."""
        own, wall = self.clock() - self.began[0], time.monotonic() - self.began[1]
        return self.left * (wall / own if min(own, wall) > SETTLED else 1.0)

    def within(self, seconds: float) -> Deadline:
        """So many seconds from now, but no later than this one."""
        return replace(self, at=min(self.at, self.clock() + seconds))
