"""What is to be beaten (the incumbent), and lower bounds for one interval of C: on the whole
question, on an option, on a partial plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from heterps_hpc.plan.cost_model import ROUNDING, Choice, PlanCost, StageTable
from heterps_hpc.plan.exact.graph import StageOptions, Ways, least_ways, shortest_path
from heterps_hpc.plan.exact.interval import Interval
from heterps_hpc.plan.pipeline import PlanParts
from heterps_hpc.plan.problem import Bools, Floats, Ints, Problem

RELATIVE_TOLERANCE = 1e-9
SUBGRADIENT_STEPS = 25


@dataclass
class Incumbent:
    """The best valid plan so far; `value` is T · C, or T where money does not matter."""

    table: StageTable
    with_money: bool
    value: float = math.inf
    choices: tuple[Choice, ...] | None = None

    def offer(self, choices: tuple[Choice, ...]) -> PlanCost:
        """Keep the plan if it is valid and better."""
        cost = self.table.evaluate(choices)
        value = cost.seconds * cost.per_hour if self.with_money else cost.seconds
        if cost.valid and value < self.value:
            self.value, self.choices = value, choices
        return cost


@dataclass(frozen=True, eq=False)
class Totals:
    """Least totals of paths; each is a bound of its own, met by different paths."""

    weight: Floats  # chain + λ·per_hour + μ·ranks, summed
    parts: PlanParts
    per_hour: Floats


@dataclass(frozen=True, eq=False)
class Bounds:
    """Least weights of paths before and after each position, for one interval of C."""

    problem: Problem
    interval: Interval
    price: float  # λ: seconds per $/hour
    limit: Ints  # ranks of each pool that $/hour of the interval can pay
    multiplier: Floats  # μ: seconds per rank of each pool, for limits that stages share
    meets: Bools
    weight: Ways
    parts: tuple[Ways, Ways, Ways, Ways]  # of PlanParts: a sum and three maxima
    per_hour: Ways
    longest: float
    with_money: bool
    paths: tuple[list[int], ...]  # shortest paths within the limits, met on the way: plans to try

    @property
    def low(self) -> float:
        """The least C of the interval."""
        return self.interval.low

    @property
    def high(self) -> float:
        """Its largest C."""
        return self.interval.high

    @property
    def slowest(self) -> tuple[float, float]:
        """Within what the slowest stage of the interval's plans is, closer than was known."""
        m, (least, largest) = self.problem.micro_batches, self.interval.slowest
        if m > 1:
            largest = min(largest, (m * self.longest - self.parts[0].whole) / (m - 1))
        return max(least, self.parts[1].whole), largest

    @property
    def root(self) -> float:
        """A bound on every plan of the interval."""
        whole = Totals(
            weight=np.array([self.weight.whole - self._refund]),
            parts=PlanParts(*(np.array([ways.whole]) for ways in self.parts)),
            per_hour=np.array([self.per_hour.whole]),
        )
        return float(self._least(whole)[0])

    @property
    def _refund(self) -> float:
        """What every plan within the limits gets back of what it pays for its ranks."""
        return float(self.multiplier @ self.limit)

    def of_chord(self, least: float) -> float:
        """The least T · C of the interval if T + λ·C is at least this much: at one of its ends,
        because between them the product is concave."""
        price = self.price / self.problem.micro_batches
        return min(x * (least - price * x) for x in (self.low, self.high))

    def weights(self, options: StageOptions) -> Floats:
        """Chain seconds + λ · $/hour + μ · ranks of every option."""
        paid = self.multiplier[options.pool] * options.ranks
        return np.asarray(options.parts.chain_sum + self.price * options.per_hour + paid)

    def of_options(self, options: StageOptions) -> Floats:
        """A bound on every plan that contains an option."""
        begin, end, pool = options.first, options.last + 1, options.pool

        def through(ways: Ways, own: Floats) -> Floats:
            return np.asarray(ways.before[begin, pool] + own + ways.after[end, pool])

        def longest(ways: Ways, own: Floats) -> Floats:
            return np.maximum(np.maximum(ways.before[begin, pool], ways.after[end, pool]), own)

        chain_sum, *maxima = self.parts
        own_sum, *own_maxima = options.parts
        return self._least(
            Totals(
                weight=through(self.weight, self.weights(options)) - self._refund,
                parts=PlanParts(
                    through(chain_sum, own_sum),
                    *(longest(ways, own) for ways, own in zip(maxima, own_maxima, strict=True)),
                ),
                per_hour=through(self.per_hour, options.per_hour),
            )
        )

    def of_labels(self, at: Ints, pool: Ints, label: Totals) -> Floats:
        """A bound on every plan that begins with a label, given the totals of its stages."""
        rest = PlanParts(*(ways.after[at, pool] for ways in self.parts))
        return self._least(
            Totals(
                weight=label.weight + self.weight.after[at, pool] - self._refund,
                parts=label.parts.joined(rest),
                per_hour=label.per_hour + self.per_hour.after[at, pool],
            )
        )

    def _least(self, totals: Totals) -> Floats:
        """The least objective given least totals; infinite where no plan of the interval is left.

        With x = C, the chain takes at least (weight − λx)/m + (1 − 1/m)·chain_max, which falls, so
        that its product with x, and that of the loop, is concave and least at an end; the other
        bounds on T do not depend on x, so theirs grows. The largest of them is least at an end of
        the interval or where two meet.
        """
        slowest = np.maximum(totals.parts.chain_max, self.interval.slowest[0])
        totals = replace(totals, parts=totals.parts._replace(chain_max=slowest))
        pipeline, parts = self.problem.pipeline, totals.parts
        with np.errstate(invalid="ignore"):  # infinite where no path is left; dropped below
            chain = pipeline.chain_seconds(parts.chain_sum, parts.chain_max)
            floor_t = pipeline.from_chain(np.maximum(chain, parts.chain_max), parts)
            if not self.with_money:
                return np.where(floor_t <= self.longest * (1 + ROUNDING), floor_t, np.inf)
            low = np.minimum(np.maximum(self.low, totals.per_hour), self.high)
            least, at_high = self._least_product(totals, floor_t, low)
        possible = (totals.per_hour <= self.high * (1 + ROUNDING)) & (
            at_high <= self.longest * (1 + ROUNDING)
        )
        return np.where(possible, least, np.inf)

    def _least_product(self, totals: Totals, floor_t: Floats, low: Floats) -> tuple[Floats, Floats]:
        """The least T(x)·x of the interval, and T at its upper end."""
        pipeline, parts = self.problem.pipeline, totals.parts
        high = np.full_like(low, self.high)

        def seconds(x: Floats) -> Floats:
            chain = pipeline.chain_seconds(totals.weight - self.price * x, parts.chain_max)
            return np.maximum(pipeline.from_chain(chain, parts), floor_t)

        def product_where(chain: Floats) -> Floats:
            budget = pipeline.chain_budget(chain, parts.chain_max)
            x = np.clip((totals.weight - budget) / self.price, low, high)
            return seconds(x) * x

        at_high = seconds(high)
        least = np.minimum(seconds(low) * low, at_high * high)
        least = np.minimum(least, product_where(pipeline.chain_limit(floor_t, parts)))
        if self.problem.staleness > 0:  # else the loop is longer than the chain everywhere
            least = np.minimum(least, product_where(pipeline.where_loop_ends(parts)))
        return least, at_high


def make_bounds(
    problem: Problem, options: StageOptions, incumbent: Incumbent, interval: Interval
) -> Bounds | None:
    """Bounds for plans of an interval that beat the incumbent; None if there are none."""
    if not len(options):
        return None
    m, low, high = problem.micro_batches, interval.low, interval.high
    longest = problem.longest_batch
    price = 0.0
    if incumbent.with_money:
        longest = min(longest, incumbent.value / low)
        price = m * incumbent.value / (low * high)
    else:
        longest = min(longest, incumbent.value)
    limit = affordable(problem, high) if incumbent.with_money else problem.pools.limit
    meets = (longest * (1 + ROUNDING) >= options.alone) & (options.ranks <= limit[options.pool])
    meets &= options.parts.chain_max <= interval.slowest[1] * (1 + ROUNDING)

    def ways(weight: Floats, bottleneck: bool = False) -> Ways:
        return least_ways(options, np.where(meets, weight, np.inf), bottleneck=bottleneck)

    chain_sum, *maxima = options.parts
    chain_max, tables_max, rows_max = (ways(own, True) for own in maxima)
    if not math.isfinite(chain_max.whole):
        return None
    to_beat = incumbent.value / low if incumbent.with_money else incumbent.value
    slowest = max(chain_max.whole, interval.slowest[0])
    budget = problem.pipeline.chain_budget(np.array(to_beat), np.array(slowest))
    target = price * low + float(budget)
    weight = np.where(meets, options.parts.chain_sum + price * options.per_hour, np.inf)
    multiplier, paths = _limit_multipliers(limit, options, weight, target)
    bounds = Bounds(
        problem=problem,
        interval=interval,
        price=price,
        limit=limit,
        multiplier=multiplier,
        meets=meets,
        weight=ways(
            options.parts.chain_sum
            + price * options.per_hour
            + multiplier[options.pool] * options.ranks
        ),
        parts=(ways(chain_sum), chain_max, tables_max, rows_max),
        per_hour=ways(options.per_hour),
        longest=longest,
        with_money=incumbent.with_money,
        paths=tuple(paths),
    )
    if not math.isfinite(bounds.weight.whole):
        return None
    return bounds if bounds.root < incumbent.value * (1 - RELATIVE_TOLERANCE) else None


def affordable(problem: Problem, per_hour: float) -> Ints:
    """Ranks of each pool that so much money per hour can pay: where nodes are billed whole, a stage
    of one rank costs its share by the bounds, and a whole node in truth."""
    pools = problem.pools
    units = np.floor(np.minimum(per_hour / pools.price * (1 + ROUNDING), 1e15)).astype(np.int64)
    return np.asarray(np.minimum(pools.limit, units * pools.ranks_per_unit))


def _limit_multipliers(
    limit: Ints, options: StageOptions, weight: Floats, target: float
) -> tuple[Floats, list[list[int]]]:
    """Lagrange multipliers of the pools' limits, which stages share: seconds per rank.

    A path that pays μ per rank and gets μ · limit back weighs no more than it did if it keeps the
    limit, so the lightest such path is still a bound, and a better one where limits bind. Found by
    subgradient steps of Polyak's length towards `target`, which would rule the interval out.
    """
    multiplier = np.zeros(options.num_pools)
    best, best_multiplier = -math.inf, multiplier
    within: list[list[int]] = []
    for _ in range(SUBGRADIENT_STEPS):
        priced = weight + multiplier[options.pool] * options.ranks
        ways = least_ways(options, priced)
        value = ways.whole - float(multiplier @ limit)
        if not math.isfinite(value):
            break
        if value > best:
            best, best_multiplier = value, multiplier
        path = shortest_path(options, priced, ways)
        over = np.bincount(options.pool[path], options.ranks[path], options.num_pools) - limit
        if not (over > 0).any():
            within.append(path)
        slope = np.where((over > 0) | (multiplier > 0), over, 0.0)
        if best >= target or not (over > 0).any() or not slope.any():
            break
        goal = target if math.isfinite(target) else 2 * abs(value) + 1e-9  # no plan known yet
        step = max(goal - value, abs(value) * 1e-3) / float(slope @ slope)
        multiplier = np.maximum(0.0, multiplier + step * slope)
    return best_multiplier, within
