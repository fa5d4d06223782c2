"""The certified optimum: the yardstick for every scheduler.

We minimise T · C (seconds per batch times $/hour) over all stage covers. Both are sums over the
stages of a path, T also has a maximum, so neither a shortest path nor a linear programme will do.
Instead the range of C is cut into intervals [xl, xu]. Within one, the chord of the hyperbola
T · C = Z through its ends gives a price λ of money in seconds, for which a shortest path in
seconds + λ·$/hour is a lower bound on every plan of the interval (Z: the best plan so far).
Intervals whose bound reaches Z are done; the others are searched by labels (labels.py), after
options that cannot be part of a better plan have been struck out, and halved if that is too much.

Limits shared by stages of one pool, and nodes billed whole, enter only where a plan would break
them (labels.py). Where they couple so many stages that labels multiply, the interval goes to HiGHS
(milp.py). Out of time, the least bound of the open intervals is a proven bound.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heterps_hpc.plan.cost_model import ROUNDING, Choice, StageTable, money_of
from heterps_hpc.plan.exact.bounds import RELATIVE_TOLERANCE, Incumbent, make_bounds
from heterps_hpc.plan.exact.focus import (
    Focus,
    by_labels,
    by_milp,
    focus,
    offer_path,
    offer_paths,
    what_is_left,
)
from heterps_hpc.plan.exact.graph import (
    Run,
    StageOptions,
    least_ways,
    make_options,
    shortest_path,
)
from heterps_hpc.plan.exact.labels import SearchEnd
from heterps_hpc.plan.exact.milp import TOLERANCE, MilpAnswer
from heterps_hpc.plan.pipeline import PlanParts
from heterps_hpc.plan.problem import Floats, Problem

Objective = Literal["money", "seconds"]
NARROW = 1.0005  # an interval of C is not halved any more once xu/xl is below this
CLOSE = 1.002  # bisection ends, and the full search begins, once bounds are this close
ROUGHLY = 0.3  # how close to the fastest HiGHS must come where any plan will do
WIDE = 2.0  # HiGHS gets intervals of C up to this xu/xl: on wider ones the chord says little
FEW_PRODUCTS = 200_000  # label × option products worth trying before an interval is halved
CHORD = 1.1  # up to this xu/xl a chord is off by no more than a block of rank counts
FEW_SPLIT = 3_000  # on wider intervals, where splitting blocks hardly helps
MAX_SPLIT = 60_000  # options that blocks of rank counts are split into before an interval is halved
FEW_COUPLED = 10_000  # and where stages share limits, before HiGHS takes over


# bound, least and largest C, a number to order equals, the options that are left
_Interval = tuple[float, float, float, int, StageOptions]


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
    max_intervals: float = math.inf,
) -> Solution:
    """The best plan over all placements, or over the rank counts of the given stages.

    `max_intervals` bounds the effort whatever the machine's speed, so that a search that calls
    this stays repeatable.
    """
    deadline = time.monotonic() + seconds
    options = make_options(table, runs)
    incumbent = Incumbent(table, objective == "money")
    if start is not None:
        incumbent.offer(start)
    if incumbent.choices is None or runs is None:
        _first_plans(table, options, incumbent)
    if objective == "seconds" or incumbent.choices is None:
        fastest = incumbent if objective == "seconds" else Incumbent(table, False)
        bound = _fastest(table, options, fastest, deadline, any_plan=objective == "money")
        if objective == "seconds":
            return _solution(fastest, bound)
        if fastest.choices is None:  # no plan at all, or none found in time
            return Solution(
                None, math.inf, 0.0 if bound < math.inf else math.inf, bound == math.inf
            )
        incumbent.offer(fastest.choices)
    return _solution(incumbent, _cheapest(table, options, incumbent, deadline, max_intervals))


def find_any(table: StageTable, seconds: float = math.inf) -> tuple[Choice, ...] | None:
    """Any plan that is valid; None if there is none, or none was found in time."""
    options, incumbent = make_options(table), Incumbent(table, False)
    _first_plans(table, options, incumbent)
    if incumbent.choices is None:
        _fastest(table, options, incumbent, time.monotonic() + seconds, any_plan=True)
    return incumbent.choices


def _solution(incumbent: Incumbent, bound: float) -> Solution:
    problem = incumbent.table.problem
    scale = money_of(problem, 1.0, 1.0) if incumbent.with_money else 1.0
    if incumbent.choices is None:
        return Solution(None, math.inf, bound * scale, bound == math.inf)
    value = incumbent.value * scale
    proven = bound >= incumbent.value * (1 - 2 * RELATIVE_TOLERANCE)
    return Solution(incumbent.choices, value, value if proven else bound * scale, proven)


def _first_plans(table: StageTable, options: StageOptions, incumbent: Incumbent) -> None:
    """Good plans to start from: shortest paths for many prices of money, few ranks per stage."""
    if not len(options):
        return
    limit = table.problem.pools.limit[options.pool]
    scale = float(np.median(options.ET) / np.median(options.per_hour))
    fastest = float(np.quantile(options.alone, 0.001))
    caps = [math.inf]  # where the slowest stage counts, try to do without slow ones
    if table.problem.micro_batches > 1:
        caps += list(np.geomspace(fastest, float(options.alone.max()), 10)[:-1])
    for share in (1, 2, 4):  # a share of each pool per stage, so that several stages fit
        modest = options.ranks <= np.maximum(1, limit // share)
        tries = [(math.inf, price) for price in (0.0, *np.geomspace(1e-3, 1e3, 13))]
        if not incumbent.with_money or incumbent.choices is None:
            tries += [(cap, 0.0) for cap in caps]
        for seconds, (cap, price) in itertools.product(_seconds_to_save(table, options), tries):
            weight = seconds + price * scale * options.per_hour
            weight = np.where(modest & (cap >= options.alone), weight, np.inf)
            path = shortest_path(options, weight, least_ways(options, weight))
            if path:
                offer_path(options, path, incumbent)


def _seconds_to_save(table: StageTable, options: StageOptions) -> list[Floats]:
    """What each option adds to T: to the chain, and where the loop may bind, to that too."""
    problem = table.problem
    if problem.staleness > 0 and not problem.floor:
        return [options.parts.chain_sum]
    m, lag = problem.micro_batches, problem.staleness + 1
    parts = options.parts
    loop = (m * parts.tables_max + 2 * parts.rows_max) / lag
    return [parts.chain_sum, parts.chain_sum + loop]


def _fastest(
    table: StageTable,
    options: StageOptions,
    incumbent: Incumbent,
    deadline: float,
    *,
    any_plan: bool = False,
) -> float:
    """Search for the least seconds per batch, or for any plan at all; returns a bound.

    Bisection: "is there a plan faster than the target?" is the easier to answer the lower the
    target, because fewer stages can be part of such a plan.
    """
    low, effort, share = 0.0, float(FEW_PRODUCTS), 0.5
    if not any_plan:
        _descend(table, options, incumbent, deadline)
    while True:
        high = incumbent.value
        bounds = make_bounds(table.problem, options, incumbent, 0.0, math.inf)
        if bounds is None or (any_plan and incumbent.choices is not None):
            return high
        low = max(low, bounds.root)
        if low >= high * (1 - RELATIVE_TOLERANCE):
            return high
        last = math.isinf(high) or high <= low * CLOSE
        target = high if last else low ** (1 - share) * high**share
        trial = Incumbent(table, False, target)
        inside = focus(table, options, trial, 0.0, math.inf, effort / FEW_PRODUCTS * MAX_SPLIT)
        if inside is not None and offer_paths(inside, incumbent):
            continue
        end = SearchEnd.DONE
        if inside is not None:
            coupled = effort / FEW_PRODUCTS * FEW_COUPLED
            end = by_labels(inside, trial, deadline, effort, coupled)
        if trial.choices is not None:
            incumbent.offer(trial.choices)
        elif end is SearchEnd.DONE:
            if last:
                return high
            low, share = trial.value, 0.5
        if end is SearchEnd.TOO_MANY and inside is not None:
            gap = ROUGHLY if any_plan else TOLERANCE / 10
            answer = by_milp(inside, trial, incumbent, deadline, gap)
            if answer is not None and math.isfinite(answer.bound):
                low = max(low, min(answer.bound, trial.value))
                if answer.complete and low >= incumbent.value * (1 - 2 * TOLERANCE):
                    return incumbent.value
            elif answer is not None:
                if last:
                    return high
                low = trial.value
            else:  # too big for both: ask for less
                share = max(share / 2, 1 / 64)
            effort *= 2
        if end is SearchEnd.OUT_OF_TIME or time.monotonic() > deadline:
            return low


def _descend(
    table: StageTable, options: StageOptions, incumbent: Incumbent, deadline: float
) -> None:
    """Faster plans in quick steps: shortest paths of stages a little faster than the best plan."""
    step = 0.9
    while incumbent.choices is not None and step < 0.99 and time.monotonic() < deadline:
        trial = Incumbent(table, False, incumbent.value * step)
        inside = focus(table, options, trial, 0.0, math.inf, 0)
        if inside is None or not offer_paths(inside, incumbent):
            step = (1 + step) / 2


def _cheapest(
    table: StageTable,
    options: StageOptions,
    incumbent: Incumbent,
    deadline: float,
    max_intervals: float,
) -> float:
    """Search for the least money; returns a bound on T · C."""
    least_c = least_ways(options, options.per_hour).whole
    least_t = _least_seconds(table.problem, options)
    max_c = incumbent.value / least_t * (1 + 1e-9)
    repeatable = max_intervals < math.inf  # then no programme that time may cut off
    first: _Interval = (0.0, least_c * (1 - ROUNDING), max_c, 0, options)
    open_: list[_Interval] = [first]
    number = itertools.count(1)  # so that options are never compared
    if not repeatable:
        open_ = _bounded_intervals(table, first, incumbent, deadline)
        number = itertools.count(len(open_))
    while open_:
        bound, low, high, _, options = heapq.heappop(open_)
        if bound >= incumbent.value * (1 - RELATIVE_TOLERANCE):
            continue
        max_intervals -= 1
        if time.monotonic() > deadline or max_intervals < 0:
            return min([bound, *(entry[0] for entry in open_)])
        narrow = high <= low * NARROW
        to_the_end = narrow and not repeatable
        max_options: float = MAX_SPLIT if high <= low * CHORD else FEW_SPLIT
        max_options = math.inf if to_the_end else max_options
        inside = focus(table, options, incumbent, low, high, max_options)
        if inside is None:
            continue
        offer_paths(inside, incumbent)
        bound = max(bound, inside.bounds.root)
        effort = math.inf if to_the_end else FEW_PRODUCTS
        coupled = math.inf if to_the_end else FEW_COUPLED
        end = by_labels(inside, incumbent, deadline, effort, coupled)
        if end is SearchEnd.OUT_OF_TIME or (narrow and end is SearchEnd.TOO_MANY):
            return min([bound, *(entry[0] for entry in open_)])
        if end is SearchEnd.TOO_MANY:
            middle = math.sqrt(low * high)
            if not repeatable and high <= low * WIDE:
                left = deadline - time.monotonic()
                until = min(deadline, time.monotonic() + max(1.0, left / 4))
                answer = by_milp(inside, incumbent, incumbent, until)
                if answer is not None:
                    bound = max(bound, inside.bounds.of_chord(answer.bound))
                    if bound >= incumbent.value * (1 - TOLERANCE):
                        continue
                    middle = split_point(inside, answer, low, high)
            for ends in ((low, middle), (middle, high)):
                heapq.heappush(open_, (bound, *ends, next(number), what_is_left(inside, incumbent)))
    return incumbent.value


def _bounded_intervals(
    table: StageTable, first: _Interval, incumbent: Incumbent, deadline: float
) -> list[_Interval]:
    """Cut the range of C into intervals with a bound each, before any is searched: should time run
    out on a hard one, the others' bounds are worth something."""
    number = itertools.count(1)
    until = min(deadline, time.monotonic() + (deadline - time.monotonic()) / 4)
    open_: list[_Interval] = [first]
    done: list[_Interval] = []
    while open_ and time.monotonic() < until:
        bound, low, high, _, options = heapq.heappop(open_)
        if bound >= incumbent.value * (1 - RELATIVE_TOLERANCE):
            continue
        inside = focus(table, options, incumbent, low, high, 0)
        if inside is None:
            continue
        offer_paths(inside, incumbent)
        bound = max(bound, inside.bounds.root)
        if high <= low * CHORD:
            done.append((bound, low, high, next(number), what_is_left(inside, incumbent)))
            continue
        middle, left = math.sqrt(low * high), what_is_left(inside, incumbent)
        for ends in ((low, middle), (middle, high)):
            heapq.heappush(open_, (bound, *ends, next(number), left))
    open_ += done
    heapq.heapify(open_)
    return open_


def split_point(inside: Focus, answer: MilpAnswer, low: float, high: float) -> float:
    """Where to cut an interval: at the plan that HiGHS found, which then is below no chord."""
    if answer.path:
        at = inside.table.evaluate(inside.options.choices(answer.path)).per_hour
        if low * (1 + TOLERANCE) < at < high * (1 - TOLERANCE):
            return at
    return math.sqrt(low * high)


def _least_seconds(problem: Problem, options: StageOptions) -> float:
    chain_sum, *maxima = options.parts
    least = [least_ways(options, chain_sum).whole]
    least += [least_ways(options, part, bottleneck=True).whole for part in maxima]
    if not math.isfinite(least[0]):
        return math.inf
    return float(problem.pipeline.batch_seconds(PlanParts(*(np.array(x) for x in least))))
