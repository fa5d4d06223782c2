"""One interval of C: the options that may matter in it, and the two ways to search them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact.bounds import Bounds, Incumbent, make_bounds
from heterps_hpc.plan.exact.deadline import Deadline
from heterps_hpc.plan.exact.graph import SPLIT, StageOptions, split_blocks, take
from heterps_hpc.plan.exact.interval import Interval
from heterps_hpc.plan.exact.labels import SearchEnd, promising, search_labels
from heterps_hpc.plan.exact.milp import MAX_OPTIONS, TOLERANCE, MilpAnswer, best_of_interval


@dataclass(frozen=True, eq=False)
class Focus:
    """What is left of the options in one interval of C, with bounds made of them."""

    table: StageTable
    options: StageOptions
    bounds: Bounds
    has_blocks: bool  # among those that matter: only bounds can be had of them, no plans


def focus(
    table: StageTable,
    options: StageOptions,
    incumbent: Incumbent,
    interval: Interval,
    max_options: float,
) -> Focus | None:
    """Options and bounds of an interval's plans that beat the incumbent; None: there are none.

    Blocks of rank counts that may matter are split, and all that cannot is dropped, until each
    option that matters is one number of ranks, or there would be too many.
    """
    has_blocks = False
    bounds = make_bounds(table.problem, options, incumbent, interval)
    while bounds is not None and options.is_block.any():
        picked = promising(options, bounds, incumbent)
        num_blocks = int(options.is_block[picked].sum())
        has_blocks = num_blocks > 0
        if not has_blocks or len(picked) + SPLIT * num_blocks > max_options:
            break
        options = split_blocks(table, options, picked)
        bounds = make_bounds(table.problem, options, incumbent, interval)
        has_blocks = False
    return None if bounds is None else Focus(table, options, bounds, has_blocks)


def offer_path(options: StageOptions, path: Sequence[int], incumbent: Incumbent) -> None:
    """Offer a path as a plan; blocks by both of their ends."""
    incumbent.offer(options.choices(path))
    if options.is_block[path].any():
        incumbent.offer(options.largest_choices(path))


def offer_paths(inside: Focus, incumbent: Incumbent) -> bool:
    """Offer the plans that were met while the bounds were made; whether one is better."""
    before = incumbent.value
    for path in inside.bounds.paths:
        offer_path(inside.options, path, incumbent)
    return incumbent.value < before * (1 - TOLERANCE)


def by_labels(
    inside: Focus, incumbent: Incumbent, deadline: Deadline, effort: float, coupled: float
) -> SearchEnd:
    """Search an interval by labels, if it has come down to single rank counts."""
    if inside.has_blocks:
        return SearchEnd.TOO_MANY
    return search_labels(
        inside.table, inside.options, inside.bounds, incumbent, deadline, effort, coupled
    )


def by_milp(
    inside: Focus,
    trial: Incumbent,
    incumbent: Incumbent,
    deadline: Deadline,
    gap: float = TOLERANCE / 10,
) -> MilpAnswer | None:
    """Hand an interval that labels cannot finish to HiGHS; None if it is too big for that."""
    options = inside.options
    picked = promising(options, inside.bounds, trial)
    if len(picked) > MAX_OPTIONS:
        return None
    answer = best_of_interval(options, picked, inside.bounds, deadline.wall_left, gap)
    if answer.path:
        offer_path(options, answer.path, incumbent)
    return answer


def what_is_left(inside: Focus, incumbent: Incumbent) -> StageOptions:
    """The options for parts of an interval: those that may matter in it, if they are much fewer."""
    picked = promising(inside.options, inside.bounds, incumbent)
    if 2 * len(picked) > len(inside.options):
        return inside.options
    return take(inside.table, inside.options, picked)
