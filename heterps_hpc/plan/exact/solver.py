"""The certified optimum: the yardstick for every scheduler.

We minimise T · C (seconds per batch times $/hour) over all stage covers. Both are sums over the
stages of a path, T also has a maximum, so neither a shortest path nor a linear programme will do.
Instead the range of C is cut into intervals [xl, xu]. Within one, the chord of the hyperbola
T · C = Z through its ends gives a price λ of money in seconds, for which a shortest path in
seconds + λ·$/hour is a lower bound on every plan of the interval (Z: the best plan so far).
Intervals whose bound reaches Z are done; the others are searched by labels (labels.py), after
options that cannot be part of a better plan have been struck out, and halved if that is too much.

T has a sum and a maximum over the stages of the chain, whose bounds come from different paths. So
where bounds stay far from Z, intervals are also cut by the slowest stage (cutting.py).

Limits shared by stages of one pool, and nodes billed whole, enter only where a plan would break
them (labels.py). Where they couple so many stages that labels multiply, the interval goes to HiGHS
(milp.py). Out of time, the least bound of the open intervals is a proven bound.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heterps_hpc.plan.cost_model import ROUNDING, Choice, StageTable, money_of
from heterps_hpc.plan.exact.bounds import RELATIVE_TOLERANCE, Incumbent, make_bounds
from heterps_hpc.plan.exact.cutting import (
    CHORD,
    Open,
    band_to_cut,
    bound_intervals,
    say_what_is_open,
    split_point,
)
from heterps_hpc.plan.exact.deadline import Deadline
from heterps_hpc.plan.exact.first_plans import first_plans, local_plan
from heterps_hpc.plan.exact.focus import (
    by_labels,
    by_milp,
    focus,
    offer_paths,
    what_is_left,
)
from heterps_hpc.plan.exact.graph import (
    Run,
    StageOptions,
    least_ways,
    make_options,
)
from heterps_hpc.plan.exact.interval import Interval
from heterps_hpc.plan.exact.labels import SearchEnd
from heterps_hpc.plan.exact.milp import TOLERANCE
from heterps_hpc.plan.pipeline import PlanParts
from heterps_hpc.plan.problem import Problem

Objective = Literal["money", "seconds"]
NARROW = 1.0005  # an interval of C is not halved any more once xu/xl is below this
CLOSE = 1.002  # bisection ends, and the full search begins, once bounds are this close
ROUGHLY = 0.3  # how close to the fastest HiGHS must come where any plan will do
WIDE = 2.0  # HiGHS gets intervals of C up to this xu/xl: on wider ones the chord says little
FEW_PRODUCTS = 200_000  # label × option products worth trying before an interval is halved
FAR = 0.98  # share of the best plan that a bound must reach for a proof to be near
FEW_SPLIT = 3_000  # on wider intervals, where splitting blocks hardly helps
MAX_SPLIT = 60_000  # options that blocks of rank counts are split into before an interval is halved
FEW_COUPLED = 10_000  # and where stages share limits, before HiGHS takes over


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
    clock: Callable[[], float] = time.monotonic,
) -> Solution:
    """The best plan over all placements, or over the rank counts of the given stages.

    `max_intervals` bounds the effort whatever the machine's speed, so that a search that calls
    this stays repeatable. `seconds` are those of `clock`; HiGHS, which only knows the wall's, gets
    as many of these as they took so far.
    """
    deadline = Deadline.after(seconds, clock)
    options = make_options(table, runs)
    incumbent = Incumbent(table, objective == "money")
    if start is not None:
        incumbent.offer(start)
    if incumbent.choices is None or runs is None:
        first_plans(table, options, incumbent)
    if objective == "seconds" or incumbent.choices is None:
        fastest = incumbent if objective == "seconds" else Incumbent(table, False)
        any_plan, free = objective == "money", runs is None
        bound = _fastest(table, options, fastest, deadline, any_plan=any_plan, free=free)
        if objective == "seconds":
            return _solution(fastest, bound)
        if fastest.choices is None:  # no plan at all, or none found in time
            return Solution(
                None, math.inf, 0.0 if bound < math.inf else math.inf, bound == math.inf
            )
        incumbent.offer(fastest.choices)
    effort = max_intervals, runs is None
    return _solution(incumbent, _cheapest(table, options, incumbent, deadline, *effort))


def find_any(table: StageTable, seconds: float = math.inf) -> tuple[Choice, ...] | None:
    """Any plan that is valid; None if there is none, or none was found in time."""
    options, incumbent = make_options(table), Incumbent(table, False)
    first_plans(table, options, incumbent)
    if incumbent.choices is None:
        _fastest(table, options, incumbent, Deadline.after(seconds), any_plan=True, free=True)
    return incumbent.choices


def _solution(incumbent: Incumbent, bound: float) -> Solution:
    problem = incumbent.table.problem
    scale = money_of(problem, 1.0, 1.0) if incumbent.with_money else 1.0
    if incumbent.choices is None:
        return Solution(None, math.inf, bound * scale, bound == math.inf)
    value = incumbent.value * scale
    proven = bound >= incumbent.value * (1 - 2 * RELATIVE_TOLERANCE)
    return Solution(incumbent.choices, value, value if proven else bound * scale, proven)


def _fastest(
    table: StageTable,
    options: StageOptions,
    incumbent: Incumbent,
    deadline: Deadline,
    *,
    any_plan: bool,
    free: bool,
) -> float:
    """Search for the least seconds per batch, or for any plan at all; returns a bound. `free`:
    any stages will do, so small changes of a plan may be tried.

    Bisection: "is there a plan faster than the target?" is the easier to answer the lower the
    target, because fewer stages can be part of such a plan.
    """
    low, effort, share = 0.0, float(FEW_PRODUCTS), 0.5
    if not any_plan:
        _descend(table, options, incumbent, deadline)
    while True:
        high = incumbent.value
        bounds = make_bounds(table.problem, options, incumbent, Interval())
        if bounds is None or (any_plan and incumbent.choices is not None):
            return high
        low = max(low, bounds.root)
        if low >= high * (1 - RELATIVE_TOLERANCE):
            return high
        last = math.isinf(high) or high <= low * CLOSE
        target = high if last else low ** (1 - share) * high**share
        trial = Incumbent(table, False, target)
        inside = focus(table, options, trial, Interval(), effort / FEW_PRODUCTS * MAX_SPLIT)
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
        if end is SearchEnd.TOO_MANY and free and incumbent.choices is None:
            free = False  # once
            local_plan(table, incumbent, deadline)
        elif end is SearchEnd.TOO_MANY and inside is not None:
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
        if end is SearchEnd.OUT_OF_TIME or deadline.over:
            return low


def _descend(
    table: StageTable, options: StageOptions, incumbent: Incumbent, deadline: Deadline
) -> None:
    """Faster plans in quick steps: shortest paths of stages a little faster than the best plan."""
    step = 0.9
    while incumbent.choices is not None and step < 0.99 and not deadline.over:
        trial = Incumbent(table, False, incumbent.value * step)
        inside = focus(table, options, trial, Interval(), 0)
        if inside is None or not offer_paths(inside, incumbent):
            step = (1 + step) / 2


def _cheapest(
    table: StageTable,
    options: StageOptions,
    incumbent: Incumbent,
    deadline: Deadline,
    max_intervals: float,
    free: bool,
) -> float:
    """Search for the least money; returns a bound on T · C. `free`: any stages will do."""
    least_c = least_ways(options, options.per_hour).whole
    least_t = _least_seconds(table.problem, options)
    max_c = incumbent.value / least_t * (1 + 1e-9)
    repeatable = max_intervals < math.inf  # then no programme that time may cut off
    whole = Interval(least_c * (1 - ROUNDING), max_c)
    open_: list[Open] = [(0.0, 0, whole, options)]
    number = itertools.count(1)  # so that options are never compared
    if not repeatable:
        bound_intervals(table, open_, incumbent, deadline, number)
        if free and open_ and open_[0][0] < incumbent.value * FAR:
            local_plan(table, incumbent, deadline)
            bound_intervals(table, open_, incumbent, deadline, number, by_slowest=True)
            say_what_is_open(open_, incumbent.value, deadline)
    while open_:
        bound, _, interval, options = heapq.heappop(open_)
        if bound >= incumbent.value * (1 - RELATIVE_TOLERANCE):
            continue
        max_intervals -= 1
        if deadline.over or max_intervals < 0:
            return min([bound, *(entry[0] for entry in open_)])
        low, high = interval.low, interval.high
        narrow = high <= low * NARROW
        to_the_end = narrow and not repeatable
        max_options: float = MAX_SPLIT if high <= low * CHORD else FEW_SPLIT
        max_options = math.inf if to_the_end else max_options
        inside = focus(table, options, incumbent, interval, max_options)
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
            halves, band = interval.cut_by_money(), band_to_cut(inside, interval)
            if not repeatable and band is not None:
                halves = interval.cut_by_slowest(band)
            elif not repeatable and high <= low * WIDE:
                answer = by_milp(inside, incumbent, incumbent, deadline.within(_turn(deadline)))
                if answer is not None:
                    bound = max(bound, inside.bounds.of_chord(answer.bound))
                    if bound >= incumbent.value * (1 - TOLERANCE):
                        continue
                    halves = interval.cut_by_money(split_point(inside, answer, low, high))
            for half in halves:
                left = what_is_left(inside, incumbent)
                heapq.heappush(open_, (bound, next(number), half, left))
    return incumbent.value


def _turn(deadline: Deadline) -> float:
    """Seconds that HiGHS gets for one interval."""
    return max(1.0, deadline.left / 4)


def _least_seconds(problem: Problem, options: StageOptions) -> float:
    chain_sum, *maxima = options.parts
    least = [least_ways(options, chain_sum).whole]
    least += [least_ways(options, part, bottleneck=True).whole for part in maxima]
    if not math.isfinite(least[0]):
        return math.inf
    return float(problem.pipeline.batch_seconds(PlanParts(*(np.array(x) for x in least))))
