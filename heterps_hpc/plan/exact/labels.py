"""Label search within one interval of C: every partial plan that may still beat the best so far.

A label is a partial plan that ends at a position on a pool, with the totals of its stages: the
parts of equation 4 (pipeline.py), and $/hour. A label is dropped when its bound reaches the best
plan, or when another label of its position and pool is no worse in everything that the rest of the
plan can see.

Pool limits that several stages share, and nodes billed whole, are looked at lazily: a pool's used
ranks become part of its labels only after a finished plan broke its limit (or paid for a part of a
node), because every such pool makes labels harder to compare.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from heterps_hpc.plan.cost_model import ROUNDING, Choice, StageTable
from heterps_hpc.plan.exact.bounds import Bounds, Incumbent, Totals
from heterps_hpc.plan.exact.deadline import Deadline
from heterps_hpc.plan.exact.graph import StageOptions
from heterps_hpc.plan.pipeline import PlanParts
from heterps_hpc.plan.problem import Bools, Floats, Ints, Problem

TOLERANCE = 1e-9
ENOUGH_BROKEN = 200  # finished plans over a limit that are looked at for pools to watch
COMPARING = 20  # products that one label is worth: it is compared with those of its position
CHUNK = 2_000_000  # label × option products looked at in one go
# columns of a label's totals: the parts of equation 4, then
CHAIN_SUM, CHAIN_MAX, PER_HOUR, WEIGHT, NUM_COLUMNS = 0, 1, 4, 5, 6


@dataclass
class _Labels:
    """Labels at one position; lists grow until the position is reached."""

    totals: list[Floats] = field(default_factory=list)  # [labels, NUM_COLUMNS]
    used: list[Ints] = field(default_factory=list)  # ranks of the watched pools
    pool: list[Ints] = field(default_factory=list)
    parent: list[Ints] = field(default_factory=list)  # (position, index) of the label before
    option: list[Ints] = field(default_factory=list)


class SearchEnd(Enum):
    """How a search ended."""

    DONE = "done"
    OUT_OF_TIME = "out of time"
    TOO_MANY = "too many labels"


def promising(options: StageOptions, bounds: Bounds, incumbent: Incumbent) -> Ints:
    """StageOptions that may be part of a plan of the interval that beats the best so far."""
    keep = bounds.meets & (bounds.of_options(options) < incumbent.value * (1 - TOLERANCE))
    return np.flatnonzero(keep)


def search_labels(
    table: StageTable,
    options: StageOptions,
    bounds: Bounds,
    incumbent: Incumbent,
    deadline: Deadline,
    max_products: float,
    max_coupled: float = float("inf"),
) -> SearchEnd:
    """Improve the incumbent to the best plan of the interval.

    Gives up when more than `max_products` pairs of a label and an option would be looked at, or
    more than `max_coupled` once stages share a limit, which makes labels hard to compare.
    """
    picked = promising(options, bounds, incumbent)
    watched: list[int] = []
    while True:
        allowed = min(max_products, max_coupled) if watched else max_products
        search = _Search(table, options, picked, bounds, incumbent, watched, deadline, allowed)
        broken = search.run()
        if isinstance(broken, SearchEnd):
            return broken
        if not broken:
            return SearchEnd.DONE
        watched = sorted({*watched, *broken})


@dataclass
class _Search:
    """One pass over the positions with one set of watched pools."""

    table: StageTable
    options: StageOptions
    picked: Ints
    bounds: Bounds
    incumbent: Incumbent
    watched: list[int]
    deadline: Deadline
    max_products: float

    def run(self) -> set[int] | SearchEnd:
        """Returns the pools that must be watched too."""
        num_layers = self.options.num_layers
        self.places = [_Labels() for _ in range(num_layers + 1)]
        self.weights = self.bounds.weights(self.options)
        root = self.places[0]
        root.totals.append(np.zeros((1, NUM_COLUMNS)))
        root.used.append(np.zeros((1, len(self.watched)), dtype=np.int64))
        root.pool.append(np.array([-1]))
        root.parent.append(np.array([[-1, -1]]))
        root.option.append(np.array([-1]))
        for position in range(num_layers + 1):
            if not self.places[position].totals:
                continue
            final = position == num_layers
            arrived = sum(len(part) for part in self.places[position].pool)
            if arrived * COMPARING > self.max_products and not final:
                return SearchEnd.TOO_MANY
            in_time = _settle(
                self.table.problem,
                self.places[position],
                self.options.handed_over[position] * self.options.way_out,
                self.watched,
                self.bounds.with_money,
                self.deadline,
                final=final,
            )
            if not in_time:
                return SearchEnd.OUT_OF_TIME
            if not final:
                here = self.picked[self.options.first[self.picked] == position]
                self.max_products -= len(here) * len(self.places[position].pool[0])
                if self.max_products < 0:
                    return SearchEnd.TOO_MANY
                if not self._extend(here, position):
                    return SearchEnd.OUT_OF_TIME
        return self._finish()

    def _extend(self, here: Ints, position: int) -> bool:
        """Add every option that starts here to every label that ends here; False: out of time."""
        totals, used = self.places[position].totals[0], self.places[position].used[0]
        options, pool = self.options, self.places[position].pool[0]
        if not len(here) or not len(pool):
            return True
        rows = max(1, CHUNK // len(here))
        for first in range(0, len(pool), rows):
            if self.deadline.over:
                return False
            block = np.arange(first, min(first + rows, len(pool)))
            label, pick = np.repeat(block, len(here)), np.tile(here, len(block))
            other = options.pool[pick] != pool[label]
            label, pick = label[other], pick[other]
            before = totals[label].T
            own = PlanParts(*(part[pick] for part in options.parts))
            waits = self._waits(position, label, pick)
            grown = Totals(
                weight=before[WEIGHT] + self.weights[pick] + waits,
                parts=PlanParts(*before[:PER_HOUR]).joined(
                    own._replace(chain_sum=own.chain_sum + waits)
                ),
                per_hour=before[PER_HOUR] + options.per_hour[pick],
            )
            at, new_pool = options.last[pick] + 1, options.pool[pick]
            mine = new_pool[:, None] == np.array(self.watched, dtype=np.int64)
            ranks = used[label] + mine * options.ranks[pick][:, None]
            good = self.bounds.of_labels(at, new_pool, grown) < self.incumbent.value * (
                1 - TOLERANCE
            )
            good &= (ranks <= self.table.problem.pools.limit[self.watched]).all(axis=1)
            for place in np.unique(at[good]):
                arrived = good & (at == place)
                parent = np.stack([np.full(arrived.sum(), position), label[arrived]], axis=1)
                target = self.places[place]
                target.totals.append(_columns(grown, arrived))
                target.used.append(ranks[arrived])
                target.pool.append(new_pool[arrived])
                target.parent.append(parent)
                target.option.append(pick[arrived])
        return True

    def _waits(self, position: int, label: Ints, pick: Ints) -> Floats:
        """What the last stages of labels and the stages after them wait for each other's links."""
        handed = self.options.handed_over[position]
        if handed == 0:
            return np.zeros(len(pick))
        last = self.places[position].option[0][label]
        return np.asarray(handed * np.abs(self.options.way_out[last] - self.options.way_out[pick]))

    def _finish(self) -> set[int]:
        """Offer the finished plans, best first; returns pools whose limits were overlooked."""
        problem, last = self.table.problem, self.places[-1]
        if not last.totals:
            return set()
        totals = last.totals[0].T
        seconds = problem.pipeline.batch_seconds(PlanParts(*totals[:PER_HOUR]))
        values = seconds * totals[PER_HOUR] if self.bounds.with_money else seconds
        values = np.where(seconds <= problem.longest_batch * (1 + ROUNDING), values, np.inf)
        broken: set[int] = set()
        num_broken = 0
        for index in np.argsort(values):
            if values[index] >= self.incumbent.value * (1 - TOLERANCE):
                break
            choices = _trace(self.options, self.places, int(index))
            cost = self.incumbent.offer(choices)
            if cost.over_limit:
                broken |= cost.over_limit
                num_broken += 1
                if num_broken == ENOUGH_BROKEN:  # it must be searched again in any case
                    break
                continue
            shared_price = totals[PER_HOUR, index] * (1 + ROUNDING)
            if self.bounds.with_money and cost.per_hour > shared_price:
                shared = problem.pools.ranks_per_unit > 1
                broken |= {choice.pool for choice in choices if shared[choice.pool]}
        return broken - set(self.watched)


def _settle(
    problem: Problem,
    labels: _Labels,
    way: Floats,  # of each option: what its link needs for the activations that go on from here
    watched: list[int],
    with_money: bool,
    deadline: Deadline,
    *,
    final: bool,
) -> bool:
    """Join what was collected at a position and drop dominated labels; False: out of time."""
    totals = np.concatenate(labels.totals)
    used = np.concatenate(labels.used)
    pool = np.concatenate(labels.pool)
    keep = np.arange(len(pool))
    if not final and len(pool) > 1:
        seen = totals[:, :WEIGHT].copy()
        for index, name in enumerate(watched):  # a watched node's price is in its used ranks
            if problem.pools.ranks_per_unit[name] > 1:
                share = problem.pools.price[name] / problem.pools.ranks_per_unit[name]
                seen[:, PER_HOUR] -= share * used[:, index]
        if problem.micro_batches == 1:
            seen[:, CHAIN_MAX] = 0.0  # T is the sum alone
        if not with_money:
            seen[:, PER_HOUR] = 0.0
        criteria = np.concatenate([seen, used], axis=1)
        if way.any():
            criteria = _with_waits(criteria, way[np.concatenate(labels.option)])
        kept = []
        for members in (np.flatnonzero(pool == p) for p in np.unique(pool)):
            if deadline.over:
                return False
            kept.append(members[_undominated(criteria[members])])
        keep = np.concatenate(kept)
    labels.totals = [totals[keep]]
    labels.used = [used[keep]]
    labels.pool = [pool[keep]]
    labels.parent = [np.concatenate(labels.parent)[keep]]
    labels.option = [np.concatenate(labels.option)[keep]]
    return True


def _with_waits(criteria: Floats, way: Floats) -> Floats:
    """Criteria where the next stage waits for the link of a label's last one, or it for that.

    Whatever comes next, two labels differ in that by no more than their links do, so a label is no
    worse if its chain is no longer with that difference added, whichever link is the slower one.
    """
    chain = criteria[:, CHAIN_SUM]
    both = np.stack([chain + way, chain + (way.max() - way)], axis=1)
    return np.concatenate([np.delete(criteria, CHAIN_SUM, axis=1), both], axis=1)


def _undominated(criteria: Floats) -> Ints:
    """Rows that no other row is at most equal to in every column."""
    rest = np.lexsort(criteria.T[::-1])
    kept: list[int] = []
    while len(rest):
        kept.append(int(rest[0]))
        worse = (criteria[rest] >= criteria[rest[0]] * (1 - 1e-13)).all(axis=1)
        worse[0] = True
        rest = rest[~worse]
    return np.array(kept)


def _columns(totals: Totals, rows: Bools) -> Floats:
    """Totals of some labels, in the order of the columns."""
    columns = (*totals.parts, totals.per_hour, totals.weight)
    return np.stack([column[rows] for column in columns], axis=1)


def _trace(options: StageOptions, places: list[_Labels], index: int) -> tuple[Choice, ...]:
    path: list[int] = []
    position = len(places) - 1
    while position > 0:
        path.append(int(places[position].option[0][index]))
        position, index = (int(value) for value in places[position].parent[0][index])
    return options.choices(path[::-1])
