"""The certified optimum: the yardstick for every scheduler.

We minimise T · C (seconds per batch times $/hour) over all stage covers. Both are sums over the
stages of a path, T also has a maximum, so neither a shortest path nor a linear programme will do.
Instead the range of C is cut into intervals [xl, xu]. Within one, the chord of the hyperbola
T · C = Z through its ends gives a price λ of money in seconds, for which a shortest path in
e + λ·c is a lower bound on every plan of the interval (Z: the best plan so far). Intervals whose
bound reaches Z are done; the others are searched by labels (labels.py), after
options that cannot be part of a better plan have been struck out, and halved if that is too much.

Limits shared by stages of one pool, and nodes billed whole, enter only where a plan would break
them (labels.py). Out of time, the least bound of the open intervals is a proven bound.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heterps_hpc.plan.bounds import Bounds
from heterps_hpc.plan.cost import (
    Choice,
    StageTable,
    batch_seconds,
    hourly_price,
    within_limits,
)
from heterps_hpc.plan.labels import Incumbent, Outcome, search_labels
from heterps_hpc.plan.paths import Options, Run, Ways, least_ways, make_options, shortest_path
from heterps_hpc.plan.problem import Floats, Problem

Objective = Literal["money", "seconds"]
RELATIVE_TOLERANCE = 1e-9
NARROW = 1.0005  # an interval of C is not halved any more once xu/xl is below this
CLOSE = 1.002  # bisection ends, and the full search begins, once bounds are this close
TOLL_STEPS = 25
FEW_PRODUCTS = 200_000  # label × option products worth trying before an interval is halved


@dataclass(frozen=True)
class Solution:
    """The best plan found (None: none exists, or none was found) and a bound on all plans."""

    choices: tuple[Choice, ...] | None
    value: float  # $ of the job, or seconds per batch
    bound: float
    proven: bool  # bound = value within rounding, or no plan exists


def solve(
    table: StageTable,
    *,
    objective: Objective = "money",
    runs: Sequence[Run] | None = None,
    seconds: float = math.inf,
    start: tuple[Choice, ...] | None = None,
    most_intervals: float = math.inf,
) -> Solution:
    """The best plan over all placements, or over the rank counts of the given stages.

    `most_intervals` bounds the effort whatever the machine's speed, so that a search that calls
    this stays repeatable.
    """
    deadline = time.monotonic() + seconds
    options = make_options(table, runs)
    incumbent = Incumbent(table.problem, objective == "money")
    if start is not None:
        offer(table, incumbent, start)
    if incumbent.choices is None or runs is None:
        _first_plans(table, options, incumbent)
    if objective == "seconds" or incumbent.choices is None:
        fastest = Incumbent(table.problem, with_money=False)
        if incumbent.choices is not None:
            offer(table, fastest, incumbent.choices)
        bound = _fastest(table, options, fastest, deadline)
        if objective == "seconds":
            return _solution(fastest, bound)
        if fastest.choices is None:  # no plan at all, or none found in time
            return Solution(
                None, math.inf, 0.0 if bound < math.inf else math.inf, bound == math.inf
            )
        offer(table, incumbent, fastest.choices)
    return _solution(incumbent, _cheapest(table, options, incumbent, deadline, most_intervals))


def offer(table: StageTable, incumbent: Incumbent, choices: tuple[Choice, ...]) -> None:
    """Let a plan become the best so far, if it is valid."""
    problem = table.problem
    cells = [(table.pair(c), c.pool, table.column(c.ranks)) for c in choices]
    if not all(table.fits[cell] for cell in cells) or not within_limits(problem, choices):
        return
    et = [float(table.ET[cell]) for cell in cells]
    seconds = batch_seconds(problem, et, [bool(table.in_sum[cell[0]]) for cell in cells])
    if seconds <= problem.longest_batch * (1 + 1e-12):
        incumbent.offer(seconds, hourly_price(problem, choices), choices)


def _solution(incumbent: Incumbent, bound: float) -> Solution:
    scale = incumbent.problem.num_batches / 3600.0 if incumbent.with_money else 1.0
    if incumbent.choices is None:
        return Solution(None, math.inf, bound * scale, bound == math.inf)
    value = incumbent.value * scale
    proven = bound >= incumbent.value * (1 - 2 * RELATIVE_TOLERANCE)
    return Solution(incumbent.choices, value, value if proven else bound * scale, proven)


def _first_plans(table: StageTable, options: Options, incumbent: Incumbent) -> None:
    """Good plans to start from: shortest paths for many prices of money, few ranks per stage."""
    if not len(options):
        return
    limit = table.problem.pools.limit[options.pool]
    scale = float(np.median(options.e + options.X) / np.median(options.c))
    for share in (1, 2, 4):  # a share of each pool per stage, so that several stages fit
        roomy = options.ranks <= np.maximum(1, limit // share)
        for price in (0.0, *np.geomspace(1e-3, 1e3, 13)):
            weight = np.where(roomy, options.e + price * scale * options.c, np.inf)
            path = shortest_path(options, weight, least_ways(options, weight))
            if path:
                offer(table, incumbent, choices_of(options, path))


def choices_of(options: Options, path: list[int]) -> tuple[Choice, ...]:
    """The stages of a path."""
    return tuple(
        Choice(
            int(options.first[i]), int(options.last[i]), int(options.pool[i]), int(options.ranks[i])
        )
        for i in path
    )


def _fastest(table: StageTable, options: Options, incumbent: Incumbent, deadline: float) -> float:
    """Search for the least seconds per batch; returns a bound on it.

    Bisection: "is there a plan faster than the target?" is the easier to answer the lower the
    target, because fewer stages can be part of such a plan.
    """
    low, effort = 0.0, float(FEW_PRODUCTS)
    while True:
        high = incumbent.value
        bounds = make_bounds(table.problem, options, incumbent, 0.0, math.inf)
        if bounds is None:
            return high
        low = max(low, bounds.root)
        if low >= high * (1 - RELATIVE_TOLERANCE):
            return high
        last = math.isinf(high) or high <= low * CLOSE
        trial = Incumbent(table.problem, False, high if last else math.sqrt(low * high))
        inside = make_bounds(table.problem, options, trial, 0.0, math.inf)
        outcome = Outcome.DONE
        if inside is not None:
            most = math.inf if last else effort
            outcome = search_labels(table, options, inside, trial, deadline, most)
        if outcome is Outcome.OUT_OF_TIME:
            return low
        if trial.choices is not None:
            offer(table, incumbent, trial.choices)
        elif outcome is Outcome.DONE:
            if last:
                return high
            low = trial.value
        if outcome is Outcome.TOO_MANY:
            effort *= 4


def _cheapest(
    table: StageTable,
    options: Options,
    incumbent: Incumbent,
    deadline: float,
    most_intervals: float,
) -> float:
    """Search for the least money; returns a bound on T · C."""
    least_c = least_ways(options, options.c).whole
    least_t = _least_seconds(table.problem, options)
    most_c = incumbent.value / least_t * (1 + 1e-9)
    open_: list[tuple[float, float, float]] = [(0.0, least_c * (1 - 1e-12), most_c)]
    while open_:
        bound, low, high = heapq.heappop(open_)
        if bound >= incumbent.value * (1 - RELATIVE_TOLERANCE):
            continue
        most_intervals -= 1
        if time.monotonic() > deadline or most_intervals < 0:
            return min([bound, *(entry[0] for entry in open_)])
        bounds = make_bounds(table.problem, options, incumbent, low, high)
        if bounds is None:
            continue
        narrow = high <= low * NARROW
        effort = math.inf if narrow and most_intervals == math.inf else FEW_PRODUCTS
        outcome = search_labels(table, options, bounds, incumbent, deadline, effort)
        if outcome is Outcome.OUT_OF_TIME or (narrow and outcome is Outcome.TOO_MANY):
            return min([bounds.root, *(entry[0] for entry in open_)])
        if outcome is Outcome.TOO_MANY:
            middle = math.sqrt(low * high)
            for ends in ((low, middle), (middle, high)):
                heapq.heappush(open_, (max(bound, bounds.root), *ends))
    return incumbent.value


def _least_seconds(problem: Problem, options: Options) -> float:
    m = problem.micro_batches
    e = least_ways(options, options.e).whole
    most = least_ways(options, options.M, bottleneck=True).whole
    ahead = least_ways(options, options.X, bottleneck=True).whole
    return max(e / m + (1 - 1 / m) * most, ahead)


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
    toll = _tolls(problem, options, np.where(meets, options.e + price * options.c, np.inf), target)
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
    )
    if not math.isfinite(bounds.both.whole):
        return None
    return bounds if bounds.root < incumbent.value * (1 - RELATIVE_TOLERANCE) else None


def _tolls(problem: Problem, options: Options, weight: Floats, target: float) -> Floats:
    """Prices of ranks, per pool, for limits that stages share (Lagrange multipliers).

    A path that pays μ per rank and gets μ · limit back weighs no more than it did if it keeps the
    limit, so the lightest such path is still a bound, and a better one where limits bind. Found by
    subgradient steps of Polyak's length towards `target`, which would rule the interval out.
    """
    limit = problem.pools.limit.astype(np.float64)
    toll = np.zeros(options.num_pools)
    best, best_toll = -math.inf, toll
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
        slope = np.where((over > 0) | (toll > 0), over, 0.0)
        if best >= target or not (over > 0).any() or not slope.any():
            break
        goal = target if math.isfinite(target) else 2 * abs(value) + 1e-9  # no plan known yet
        step = max(goal - value, abs(value) * 1e-3) / float(slope @ slope)
        toll = np.maximum(0.0, toll + step * slope)
    return best_toll
