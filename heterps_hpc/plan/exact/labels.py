"""Label search within one interval of C: every partial plan that may still beat the best so far.

A label is a partial plan that ends at a position on a pool: (E, M, X, C) = sum and maximum of its
stages' seconds, seconds of tables that work ahead, $/hour. A label is dropped when its bound
reaches the best plan, or when another label of its position and pool is no worse in everything
that the rest of the plan can see.

Pool limits that several stages share, and nodes billed whole, are looked at lazily: a pool's used
ranks become part of its labels only after a finished plan broke its limit (or paid for a part of a
node), because every such pool makes labels harder to compare.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from heterps_hpc.plan.cost_model import Choice, StageTable, hourly_price, within_limits
from heterps_hpc.plan.exact.bounds import Bounds
from heterps_hpc.plan.exact.graph import Options
from heterps_hpc.plan.exact.incumbent import Incumbent
from heterps_hpc.plan.problem import Floats, Ints, Problem

TOLERANCE = 1e-9
ENOUGH_BROKEN = 200  # finished plans over a limit that are looked at for pools to watch
COMPARING = 20  # products that one label is worth: it is compared with those of its position
CHUNK = 2_000_000  # label × option products looked at in one go


@dataclass
class _Labels:
    """Labels at one position; lists grow until the position is reached."""

    columns: list[Floats] = field(default_factory=list)  # E, M, X, C, weight
    used: list[Ints] = field(default_factory=list)  # ranks of the watched pools
    pool: list[Ints] = field(default_factory=list)
    parent: list[Ints] = field(default_factory=list)  # (position, index) of the label before
    option: list[Ints] = field(default_factory=list)


class Outcome(Enum):
    """How a search ended."""

    DONE = "done"
    OUT_OF_TIME = "out of time"
    TOO_MANY = "too many labels"


def promising(options: Options, bounds: Bounds, incumbent: Incumbent) -> Ints:
    """Options that may be part of a plan of the interval that beats the best so far."""
    keep = bounds.meets & (bounds.of_options(options) < incumbent.value * (1 - TOLERANCE))
    return np.flatnonzero(keep)


def search_labels(
    table: StageTable,
    options: Options,
    bounds: Bounds,
    incumbent: Incumbent,
    deadline: float,
    most_products: float,
    most_coupled: float = float("inf"),
) -> Outcome:
    """Improve the incumbent to the best plan of the interval.

    Gives up when more than `most_products` pairs of a label and an option would be looked at, or
    more than `most_coupled` once stages share a limit, which makes labels hard to compare.
    """
    picked = promising(options, bounds, incumbent)
    watched: list[int] = []
    while True:
        most = min(most_products, most_coupled) if watched else most_products
        search = _Search(table, options, picked, bounds, incumbent, watched, deadline, most)
        broken = search.run()
        if isinstance(broken, Outcome):
            return broken
        if not broken:
            return Outcome.DONE
        watched = sorted({*watched, *broken})


@dataclass
class _Search:
    """One pass over the positions with one set of watched pools."""

    table: StageTable
    options: Options
    picked: Ints
    bounds: Bounds
    incumbent: Incumbent
    watched: list[int]
    deadline: float
    most_products: float

    def run(self) -> set[int] | Outcome:
        """Returns the pools that must be watched too."""
        num_layers = self.options.num_layers
        self.places = [_Labels() for _ in range(num_layers + 1)]
        self.weights = self.bounds.weight(self.options)
        root = self.places[0]
        root.columns.append(np.zeros((1, 5)))
        root.used.append(np.zeros((1, len(self.watched)), dtype=np.int64))
        root.pool.append(np.array([-1]))
        root.parent.append(np.array([[-1, -1]]))
        root.option.append(np.array([-1]))
        for position in range(num_layers + 1):
            if not self.places[position].columns:
                continue
            final = position == num_layers
            arrived = sum(len(part) for part in self.places[position].pool)
            if arrived * COMPARING > self.most_products and not final:
                return Outcome.TOO_MANY
            in_time = _settle(
                self.table.problem,
                self.places[position],
                self.watched,
                self.bounds.with_money,
                self.deadline,
                final=final,
            )
            if not in_time:
                return Outcome.OUT_OF_TIME
            if not final:
                here = self.picked[self.options.first[self.picked] == position]
                self.most_products -= len(here) * len(self.places[position].pool[0])
                if self.most_products < 0:
                    return Outcome.TOO_MANY
                if not self._extend(here, position):
                    return Outcome.OUT_OF_TIME
        return self._finish()

    def _extend(self, here: Ints, position: int) -> bool:
        """Add every option that starts here to every label that ends here; False: out of time."""
        columns, used = self.places[position].columns[0], self.places[position].used[0]
        options, pool = self.options, self.places[position].pool[0]
        if not len(here) or not len(pool):
            return True
        rows = max(1, CHUNK // len(here))
        for first in range(0, len(pool), rows):
            if time.monotonic() > self.deadline:
                return False
            block = np.arange(first, min(first + rows, len(pool)))
            label, pick = np.repeat(block, len(here)), np.tile(here, len(block))
            other = options.pool[pick] != pool[label]
            label, pick = label[other], pick[other]
            grown = np.stack(
                [
                    columns[label, 0] + options.e[pick],
                    np.maximum(columns[label, 1], options.M[pick]),
                    np.maximum(columns[label, 2], options.X[pick]),
                    columns[label, 3] + options.c[pick],
                    columns[label, 4] + self.weights[pick],
                ],
                axis=1,
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
                target.columns.append(grown[arrived])
                target.used.append(ranks[arrived])
                target.pool.append(new_pool[arrived])
                target.parent.append(parent)
                target.option.append(pick[arrived])
        return True

    def _finish(self) -> set[int]:
        """Offer the finished plans, best first; returns pools whose limits were overlooked."""
        problem, last = self.table.problem, self.places[-1]
        if not last.columns:
            return set()
        columns, m = last.columns[0], problem.micro_batches
        seconds = np.maximum(columns[:, 0] / m + (1 - 1 / m) * columns[:, 1], columns[:, 2])
        values = seconds * columns[:, 3] if self.bounds.with_money else seconds
        values = np.where(seconds <= problem.longest_batch * (1 + 1e-12), values, np.inf)
        broken: set[int] = set()
        num_broken = 0
        for index in np.argsort(values):
            if values[index] >= self.incumbent.value * (1 - TOLERANCE):
                break
            choices = _trace(self.options, self.places, int(index))
            if not within_limits(problem, choices):
                broken |= _over(problem, choices)
                num_broken += 1
                if num_broken == ENOUGH_BROKEN:  # it must be searched again in any case
                    break
                continue
            per_hour = hourly_price(problem, choices)
            self.incumbent.offer(float(seconds[index]), per_hour, choices)
            if self.bounds.with_money and per_hour > columns[index, 3] * (1 + 1e-12):
                shared = problem.pools.ranks_per_unit > 1
                broken |= {choice.pool for choice in choices if shared[choice.pool]}
        return broken - set(self.watched)


def _settle(
    problem: Problem,
    labels: _Labels,
    watched: list[int],
    with_money: bool,
    deadline: float,
    *,
    final: bool,
) -> bool:
    """Join what was collected at a position and drop dominated labels; False: out of time."""
    columns = np.concatenate(labels.columns)
    used = np.concatenate(labels.used)
    pool = np.concatenate(labels.pool)
    keep = np.arange(len(pool))
    if not final and len(pool) > 1:
        seen = columns[:, :4].copy()
        for index, name in enumerate(watched):  # a watched node's price is in its used ranks
            if problem.pools.ranks_per_unit[name] > 1:
                share = problem.pools.price[name] / problem.pools.ranks_per_unit[name]
                seen[:, 3] -= share * used[:, index]
        if problem.micro_batches == 1:
            seen[:, 1] = 0.0  # T is the sum alone
        if not with_money:
            seen[:, 3] = 0.0
        criteria = np.concatenate([seen, used], axis=1)
        kept = []
        for members in (np.flatnonzero(pool == p) for p in np.unique(pool)):
            if time.monotonic() > deadline:
                return False
            kept.append(members[_undominated(criteria[members])])
        keep = np.concatenate(kept)
    labels.columns = [columns[keep]]
    labels.used = [used[keep]]
    labels.pool = [pool[keep]]
    labels.parent = [np.concatenate(labels.parent)[keep]]
    labels.option = [np.concatenate(labels.option)[keep]]
    return True


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


def _over(problem: Problem, choices: tuple[Choice, ...]) -> set[int]:
    used: dict[int, int] = {}
    for choice in choices:
        used[choice.pool] = used.get(choice.pool, 0) + choice.ranks
    return {pool for pool, ranks in used.items() if ranks > problem.pools.limit[pool]}


def _trace(options: Options, places: list[_Labels], index: int) -> tuple[Choice, ...]:
    choices: list[Choice] = []
    position = len(places) - 1
    while position > 0:
        option = int(places[position].option[0][index])
        choices.append(
            Choice(
                int(options.first[option]),
                int(options.last[option]),
                int(options.pool[option]),
                int(options.ranks[option]),
            )
        )
        position, index = (int(value) for value in places[position].parent[0][index])
    return tuple(reversed(choices))
