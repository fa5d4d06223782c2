"""Intervals of plans that are still open, and where to cut them."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterator

from heterps_hpc import format as fmt
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact.bounds import RELATIVE_TOLERANCE, Incumbent
from heterps_hpc.plan.exact.deadline import Deadline
from heterps_hpc.plan.exact.focus import Focus, focus, offer_paths, what_is_left
from heterps_hpc.plan.exact.graph import StageOptions
from heterps_hpc.plan.exact.interval import Interval
from heterps_hpc.plan.exact.milp import TOLERANCE, MilpAnswer

log = logging.getLogger(__name__)

SPEAK_SECONDS = 5.0  # a shorter search says nothing
HOPELESS = 1.25  # times the bound at which a proof rarely succeeds within minutes
BOUNDING_SECONDS = 15.0  # however long the search may take
CLOSE_BAND = 1.01  # the slowest stage is known closely enough within this ratio
CHORD = 1.1  # up to this xu/xl a chord is off by no more than a block of rank counts

# a bound on an interval, a number to order equals, the interval, the options that are left
Open = tuple[float, int, Interval, StageOptions]


def band_to_cut(inside: Focus, interval: Interval) -> tuple[float, float] | None:
    """Within what the slowest stage is, if that says less of T than the interval of C does."""
    least, largest = inside.bounds.slowest
    close = max(CLOSE_BAND, interval.high / interval.low)
    return (least, largest) if 0 < least < math.inf > largest > least * close else None


def say_what_is_open(open_: list[Open], value: float, deadline: Deadline) -> None:
    """Tell early what is probably not proven in time."""
    bound = min((entry[0] for entry in open_), default=value)
    if value > bound * HOPELESS and SPEAK_SECONDS < deadline.left < math.inf:
        log.info(
            "a proof within %.0f s is unlikely: the best plan so far costs %s times the bound, "
            "which then stands in place of the optimum",
            deadline.left,
            fmt.factor(value / bound) if bound > 0 else "many",
        )


def bound_intervals(
    table: StageTable,
    open_: list[Open],
    incumbent: Incumbent,
    deadline: Deadline,
    number: Iterator[int],
    *,
    by_slowest: bool = False,
) -> None:
    """Cut the range of C, or also that of the slowest stage, into intervals with a bound each,
    before any is searched: should time run out on a hard one, the others' bounds are worth
    something."""
    until = deadline.within(min(deadline.left / 4, BOUNDING_SECONDS))
    done: list[Open] = []
    while open_ and not until.over:
        bound, _, interval, options = heapq.heappop(open_)
        if bound >= incumbent.value * (1 - RELATIVE_TOLERANCE):
            continue
        inside = focus(table, options, incumbent, interval, 0)
        if inside is None:
            continue
        offer_paths(inside, incumbent)
        bound = max(bound, inside.bounds.root)
        left = what_is_left(inside, incumbent)
        halves, band = interval.cut_by_money(), band_to_cut(inside, interval)
        if by_slowest and band is not None:
            halves = interval.cut_by_slowest(band)
        elif interval.high <= interval.low * CHORD:
            done.append((bound, next(number), interval, left))
            continue
        for half in halves:
            heapq.heappush(open_, (bound, next(number), half, left))
    open_ += done
    heapq.heapify(open_)


def split_point(inside: Focus, answer: MilpAnswer, low: float, high: float) -> float:
    """Where to cut an interval: at the plan that HiGHS found, which then is below no chord."""
    if answer.path:
        at = inside.table.evaluate(inside.options.choices(answer.path)).per_hour
        if low * (1 + TOLERANCE) < at < high * (1 - TOLERANCE):
            return at
    return math.sqrt(low * high)
