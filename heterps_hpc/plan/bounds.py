"""Lower bounds for one interval of C: on the whole question, on an option, on a partial plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps_hpc.plan.paths import Options, Ways
from heterps_hpc.plan.problem import Bools, Floats, Ints, Problem


@dataclass(frozen=True, eq=False)
class Bounds:
    """Least weights of paths before and after each position, for one interval of C."""

    problem: Problem
    low: float
    high: float
    price: float  # λ: seconds per $/hour
    toll: Floats  # μ: seconds per rank of each pool, for limits that stages share
    meets: Bools
    both: Ways  # of e + λ·c + μ·k
    e: Ways
    c: Ways
    M: Ways
    X: Ways
    longest: float
    with_money: bool

    @property
    def root(self) -> float:
        """A bound on every plan of the interval."""
        none = np.zeros(1)
        whole = (
            self.both.whole - self._refund,
            self.e.whole,
            self.c.whole,
            self.M.whole,
            self.X.whole,
        )
        return float(self._least(*(none + value for value in whole))[0])

    @property
    def _refund(self) -> float:
        """What every plan within the limits gets back of its tolls."""
        return float(self.toll @ self.problem.pools.limit)

    def weight(self, options: Options) -> Floats:
        """e + λ·c + μ·k of every option."""
        tolls = self.toll[options.pool] * options.ranks
        return np.asarray(options.e + self.price * options.c + tolls)

    def of_options(self, options: Options) -> Floats:
        """A bound on every plan that contains an option."""
        begin, end, pool = options.first, options.last + 1, options.pool

        def through(ways: Ways, own: Floats) -> Floats:
            return np.asarray(ways.before[begin, pool] + own + ways.after[end, pool])

        most = np.maximum(self.M.before[begin, pool], self.M.after[end, pool])
        ahead = np.maximum(self.X.before[begin, pool], self.X.after[end, pool])
        return self._least(
            through(self.both, self.weight(options)) - self._refund,
            through(self.e, options.e),
            through(self.c, options.c),
            np.maximum(most, options.M),
            np.maximum(ahead, options.X),
        )

    def of_labels(self, at: Ints, pool: Ints, label: Floats) -> Floats:
        """A bound on every plan that begins with a label; columns: E, M, X, C, weight."""
        e, most, ahead, c, weight = label.T
        return self._least(
            weight + self.both.after[at, pool] - self._refund,
            e + self.e.after[at, pool],
            c + self.c.after[at, pool],
            np.maximum(most, self.M.after[at, pool]),
            np.maximum(ahead, self.X.after[at, pool]),
        )

    def _least(self, both: Floats, e: Floats, c: Floats, most: Floats, ahead: Floats) -> Floats:
        """The least objective given least totals; infinite where no plan of the interval is left.

        T(x) ≥ (both − λx)/m + (1 − 1/m)·M falls with x = C, so its product with x is concave and
        least at an end; the other bounds on T do not depend on x, so theirs grows. The larger of
        the two is least at an end of the interval or where they meet.
        """
        m = self.problem.micro_batches
        drain = (1 - 1 / m) * most if m > 1 else np.zeros(1)
        floor_t = np.maximum(np.maximum(e / m + drain, most), ahead)
        if not self.with_money:
            return np.where(floor_t <= self.longest * (1 + 1e-12), floor_t, np.inf)
        high = self.high
        low = np.minimum(np.maximum(self.low, c), high)
        with np.errstate(invalid="ignore"):  # infinite where no path is left; dropped below
            least, at_high = self._least_product(both, floor_t, drain, low)
        possible = (c <= high * (1 + 1e-12)) & (at_high <= self.longest * (1 + 1e-12))
        return np.where(possible, least, np.inf)

    def _least_product(
        self, both: Floats, floor_t: Floats, drain: Floats, low: Floats
    ) -> tuple[Floats, Floats]:
        """The least T(x)·x of the interval, and T at its upper end."""
        m = self.problem.micro_batches
        high = np.full_like(low, self.high)
        meeting = np.clip((both + m * (drain - floor_t)) / self.price, low, high)

        def seconds(x: Floats) -> Floats:
            return np.maximum((both - self.price * x) / m + drain, floor_t)

        least = np.minimum(seconds(low) * low, seconds(meeting) * meeting)
        at_high = seconds(high)
        return np.minimum(least, at_high * high), at_high
