"""Which plans are looked at together: by money per hour, and by their slowest stage."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Interval:
    """Plans of low ≤ C ≤ high in which max spread of the chain (equation 4) is within `slowest`.

    T has both a sum and that maximum. Bounds on the two come from different paths, so together they
    are weak unless one of them is known closely.
    """

    low: float = 0.0
    high: float = math.inf
    slowest: tuple[float, float] = (0.0, math.inf)

    def cut_by_money(self, at: float | None = None) -> tuple[Interval, Interval]:
        """Both parts, cut in the middle by ratio or where it is said."""
        at = math.sqrt(self.low * self.high) if at is None else at
        return replace(self, high=at), replace(self, low=at)

    def cut_by_slowest(self, band: tuple[float, float]) -> tuple[Interval, Interval]:
        """Both parts of a closer band, cut in the middle by ratio."""
        least, largest = band
        at = math.sqrt(least * largest)
        return replace(self, slowest=(least, at)), replace(self, slowest=(at, largest))
