"""Lower bounds for one interval of C: on the whole question, on an option, on a partial plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from heterps_hpc.plan.exact.graph import Options, Ways, least_ways, shortest_path
from heterps_hpc.plan.exact.incumbent import Incumbent
from heterps_hpc.plan.problem import Bools, Floats, Ints, Problem

RELATIVE_TOLERANCE = 1e-9
TOLL_STEPS = 25


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
    paths: tuple[list[int], ...]  # shortest paths within the limits, met on the way: plans to try

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

    def of_chord(self, least: float) -> float:
        """The least T · C of the interval if T + λ·C is at least this much: at one of its ends,
        because between them the product is concave."""
        price = self.price / self.problem.micro_batches
        return min(x * (least - price * x) for x in (self.low, self.high))

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


def make_bounds(
    problem: Problem, options: Options, incumbent: Incumbent, low: float, high: float
) -> Bounds | None:
    """Bounds for plans of low ≤ C ≤ high that beat the incumbent; None if there are none."""
    if not len(options):
        return None
    m = problem.micro_batches
    longest = problem.longest_batch
    price = 0.0
    if incumbent.with_money:
        longest = min(longest, incumbent.value / low)
        price = m * incumbent.value / (low * high)
    else:
        longest = min(longest, incumbent.value)
    meets = longest * (1 + 1e-12) >= options.ET

    def ways(weight: Floats, bottleneck: bool = False) -> Ways:
        return least_ways(options, np.where(meets, weight, np.inf), bottleneck=bottleneck)

    most = ways(options.M, True)
    drain = (1 - 1 / m) * most.whole if m > 1 else 0.0
    if not math.isfinite(most.whole):
        return None
    target = m * (incumbent.value - drain)
    if incumbent.with_money:
        target = price * low + m * (incumbent.value / low - drain)
    weight = np.where(meets, options.e + price * options.c, np.inf)
    toll, paths = _tolls(problem, options, weight, target)
    bounds = Bounds(
        problem=problem,
        low=low,
        high=high,
        price=price,
        toll=toll,
        meets=meets,
        both=ways(options.e + price * options.c + toll[options.pool] * options.ranks),
        e=ways(options.e),
        c=ways(options.c),
        M=most,
        X=ways(options.X, True),
        longest=longest,
        with_money=incumbent.with_money,
        paths=tuple(paths),
    )
    if not math.isfinite(bounds.both.whole):
        return None
    return bounds if bounds.root < incumbent.value * (1 - RELATIVE_TOLERANCE) else None


def _tolls(
    problem: Problem, options: Options, weight: Floats, target: float
) -> tuple[Floats, list[list[int]]]:
    """Prices of ranks, per pool, for limits that stages share (Lagrange multipliers).

    A path that pays μ per rank and gets μ · limit back weighs no more than it did if it keeps the
    limit, so the lightest such path is still a bound, and a better one where limits bind. Found by
    subgradient steps of Polyak's length towards `target`, which would rule the interval out.
    """
    limit = problem.pools.limit.astype(np.float64)
    toll = np.zeros(options.num_pools)
    best, best_toll = -math.inf, toll
    within: list[list[int]] = []
    for _ in range(TOLL_STEPS):
        tolled = weight + toll[options.pool] * options.ranks
        ways = least_ways(options, tolled)
        value = ways.whole - float(toll @ limit)
        if not math.isfinite(value):
            break
        if value > best:
            best, best_toll = value, toll
        path = shortest_path(options, tolled, ways)
        over = np.bincount(options.pool[path], options.ranks[path], options.num_pools) - limit
        if not (over > 0).any():
            within.append(path)
        slope = np.where((over > 0) | (toll > 0), over, 0.0)
        if best >= target or not (over > 0).any() or not slope.any():
            break
        goal = target if math.isfinite(target) else 2 * abs(value) + 1e-9  # no plan known yet
        step = max(goal - value, abs(value) * 1e-3) / float(slope @ slope)
        toll = np.maximum(0.0, toll + step * slope)
    return best_toll, within
