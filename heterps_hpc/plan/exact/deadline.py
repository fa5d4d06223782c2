"""Until when the exact solver may think, by the clock of whoever asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Deadline:
    """A time by some clock: the wall's, or, in benchmarks on busy machines, a core's own."""

    at: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """So many seconds from now."""
        return cls(clock() + seconds, clock)

    @property
    def left(self) -> float:
        """Seconds until then, negative once it is over."""
        return self.at - self.clock()

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return self.left < 0

    def within(self, seconds: float) -> Deadline:
        """So many seconds from now, but no later than this one."""
        return replace(self, at=min(self.at, self.clock() + seconds))
