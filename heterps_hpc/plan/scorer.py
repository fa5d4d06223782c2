"""Many placements provisioned at once: what the learning scheduler and its baselines search with.

Provisioning one placement exactly takes milliseconds; a search wants to look at tens of thousands
of placements a second. So all placements of a block get their ranks together, in three steps:

1. Every stage has a row of seconds by number of ranks (stage_rows.py). For a grid of (cap, price) a
   row gives the k of least e/m + price·$/hour with ET ≤ cap, which for the right cap and price is
   the best plan or close to it.
2. Every placement takes the column of the grid whose plan is cheapest, shared limits and whole
   nodes counted.
3. From there, ranks of one stage are added or taken away while that helps, for placements that
   are not far more expensive than the best so far. A thorough scorer does so for every placement,
   and for good ones from several columns.

A score is the money of a valid plan, so it is never too good; placements for which no valid plan
was found carry a penalty that grows with what they break.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np

from heterps_hpc.plan.cost_model import ROUNDING, Choice, StageTable, stages_of
from heterps_hpc.plan.pipeline import PlanParts
from heterps_hpc.plan.problem import Bools, Floats, Ints
from heterps_hpc.plan.stage_rows import StageBlock, StageRows

PENALTY = 10.0  # a placement that misses the floor or a limit costs this many times its money,
LATENESS = 4.0  # and this power of how late it is: a search goes first where there are valid plans
MAX_MOVES = 12  # changes of a placement's ranks after the grid
MAX_MOVES_THOROUGH = 60
MAX_STAGES_FOR_PAIRS = 16
LESS = 1 - 1e-9  # times the value: a change that helps
PART = 512  # placements that are provisioned together, so that arrays stay in the cache
WORTH = 2.0  # placements above this many times the best so far keep the plan of the grid
CLOSE = 1.25  # a thorough one also improves other plans of the grid up to this many times it,
STARTS = 3  # so many in all, from columns
APART = 18  # that are a share of the grid apart: neighbours lead to the same plan
STEPS = np.array([-8, -3, -1, 1, 3, 8])  # tried on one stage, in places of the list of counts


@dataclass(frozen=True, eq=False)
class Scores:
    """For each placement: money (with penalty if it breaks a bound) and whether it is valid."""

    money: Floats
    valid: Bools
    ranks: Ints  # [N, L]: ranks of the stage that starts at a layer, else 0


class Scorer:
    """Scores placements of one question, by money or (with `seconds_only`) by seconds per batch.

    A thorough one has a finer grid, starts from several of its columns, and changes two stages at
    once: for the few best placements. With a `lateness` of 1 placements that miss the floor are
    told apart by their money rather than by how late they are. `worth` is how many times the best
    so far a plan of the grid may cost to be improved: late ones may become good ones.
    """

    penalty = PENALTY

    def __init__(
        self,
        table: StageTable,
        *,
        thorough: bool = False,
        seconds_only: bool = False,
        lateness: float = LATENESS,
        worth: float = WORTH,
    ) -> None:
        self.table = table
        self.lateness = lateness
        self.worth = np.inf if thorough else worth
        self.thorough = thorough
        self.seconds_only = seconds_only
        self.rows = StageRows(table, fine=thorough)
        self._least = np.inf  # value of the best placement so far

    def score(self, placements: Ints) -> Scores:
        """Score placements given as pool indices, [N, L]."""
        parts = [
            self._score(part) for part in np.split(placements, range(PART, len(placements), PART))
        ]
        return Scores(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _score(self, placements: Ints) -> tuple[Floats, Bools, Ints]:
        block = self.rows.block(placements)
        places, values, valids = self._grid(block)
        which = np.arange(len(placements))
        best = values.argmin(axis=1)
        place, value = places[which, :, best], values[which, best]
        hoped = self._hoped(value, valids[which, best])
        worth = np.flatnonzero(hoped <= self.worth * self._least)
        if len(worth):
            place[worth] = self._improve(block.take(worth), place[worth], value[worth])
        value, valid = self._value_of(block, place)
        if self.thorough:
            self._start_again(block, (places, values), place, self._hoped(value, valid))
            value, valid = self._value_of(block, place)
        ranks = np.zeros(placements.shape, dtype=np.int64)
        exists = block.row > 0
        at = np.nonzero(exists)
        ranks[at[0], block.first[at]] = self.rows.counts[place[at]]
        scale = 1.0 if self.seconds_only else self.table.problem.num_batches / 3600
        return value * scale, valid, ranks

    def _hoped(self, value: Floats, valid: Bools) -> Floats:
        """What placements may come to: without the penalty of one broken bound."""
        self._least = min(self._least, float(np.where(valid, value, np.inf).min()))
        return np.where(valid, value, value / PENALTY)

    def _start_again(
        self, block: StageBlock, grid: tuple[Ints, Floats], place: Ints, hoped: Floats
    ) -> None:
        """Improve other plans of the grid, and take those that come out cheaper."""
        near = np.flatnonzero(hoped <= CLOSE * self._least)
        if not len(near):
            return
        block, places, values = block.take(near), grid[0][near], grid[1][near]
        value, _ = self._value_of(block, place[near])
        order, which = np.argsort(values, axis=1, kind="stable"), np.arange(len(near))
        step = max(1, values.shape[1] // APART)
        for column in order[:, step : STARTS * step : step].T:
            tried = self._improve(block, places[which, :, column], values[which, column])
            found, _ = self._value_of(block, tried)
            better = found < value
            place[near[better]], value = tried[better], np.minimum(value, found)

    def choices(self, placement: Ints, ranks: Ints) -> tuple[Choice, ...]:
        """The plan that a score stands for."""
        return tuple(Choice(*run, int(ranks[run[0]])) for run in stages_of(placement.tolist()))

    # 2: the grid

    def _grid(self, block: StageBlock) -> tuple[Ints, Floats, Bools]:
        """Places [N, S, G] of all columns, their values [N, G], and whether they are valid."""
        places = self.rows.start[block.row]
        return places, *self._value(block, places)

    def _value_of(self, block: StageBlock, place: Ints) -> tuple[Floats, Bools]:
        """The same of one plan each, [N, S]."""
        values, valids = self._value(block, place[:, :, None])
        return values[:, 0], valids[:, 0]

    def _value(self, block: StageBlock, place: Ints) -> tuple[Floats, Bools]:
        """T · C (or T) of ranks [N, S, G] with penalties, and whether they are valid, [N, G]."""
        problem = self.table.problem
        pools = problem.pools
        total = problem.pipeline.batch_seconds(self._parts_of(block, place))
        used = block.same @ self.rows.counts[place].astype(np.float64)
        unit = pools.ranks_per_unit[block.pool][:, :, None]
        limit = pools.limit[block.pool][:, :, None]
        rate = pools.price[block.pool][:, :, None] * block.share[:, :, None]
        per_hour = (np.ceil(used / unit) * rate).sum(axis=1)
        over = (np.maximum(used / limit - 1, 0.0) * block.share[:, :, None]).sum(axis=1)
        late = np.maximum(total / problem.longest_batch, 1.0)
        return self._penalised(total, per_hour, over, late, block.broken[:, None])

    def _parts_of(self, block: StageBlock, place: Ints) -> PlanParts:
        """The parts of equation 4 [N, G] of ranks [N, S, G]."""
        row = block.row[:, :, None]
        chain, *maxima = (part[row, place] for part in self.rows.parts)
        out = self.rows.way_out[row, place]
        waits = (np.abs(out[:, 1:] - out[:, :-1]) * block.handed[:, 1:, None]).sum(axis=1)
        return PlanParts(chain.sum(axis=1) + waits, *(part.max(axis=1) for part in maxima))

    def _penalised(
        self, total: Floats, per_hour: Floats, over: Floats, late: Floats, broken: Floats
    ) -> tuple[Floats, Bools]:
        valid = (over <= 0) & (late <= 1 + ROUNDING) & (broken == 0)
        value = total if self.seconds_only else total * per_hour
        if valid.all():
            return value, valid
        penalty = PENALTY * (1 + over) * late**self.lateness * PENALTY ** np.minimum(broken, 3)
        return np.where(valid, value, value * penalty), valid

    # 3: improvement

    def _improve(self, block: StageBlock, place: Ints, value: Floats) -> Ints:
        """Add and take ranks while that makes the plan cheaper."""
        place = place.copy()
        active = np.arange(len(place))
        now = block
        for _ in range(MAX_MOVES_THOROUGH if self.thorough else MAX_MOVES):
            changed, cheapest = self._best_move(now, place[active])
            if self.thorough and 1 < place.shape[1] <= MAX_STAGES_FOR_PAIRS:
                stuck = np.flatnonzero(cheapest >= value * LESS)  # only then: there are many pairs
                if len(stuck):
                    pairs = self._best_two_moves(now.take(stuck), place[active[stuck]])
                    changed[stuck], cheapest[stuck] = pairs
            better = np.flatnonzero(cheapest < value * LESS)
            if not len(better):
                break
            active, value = active[better], cheapest[better]
            place[active] = changed[better]
            now = now.take(better)
        return place

    def _best_move(self, block: StageBlock, place: Ints) -> tuple[Ints, Floats]:
        """The best change of one stage's ranks for each placement, and its value."""
        problem = self.table.problem
        pools = problem.pools
        k = self.rows.counts[place].astype(np.float64) * (block.row > 0)
        used = (block.same @ k[:, :, None])[:, :, 0]
        unit, limit = pools.ranks_per_unit[block.pool], pools.limit[block.pool]
        price = pools.price[block.pool]
        tried = self._tries(block, place, k, used, unit)
        total = problem.pipeline.batch_seconds(self._parts_after(block, place, tried))
        now = used[:, :, None] + self.rows.counts[tried] - k[:, :, None]
        units = np.ceil(used / unit)
        per_hour = (units * price * block.share).sum(axis=1)[:, None, None]
        per_hour = per_hour + price[:, :, None] * (
            np.ceil(now / unit[:, :, None]) - units[:, :, None]
        )
        excess = np.maximum(used / limit - 1, 0.0)
        over = (excess * block.share).sum(axis=1)[:, None, None] - excess[:, :, None]
        over = over + np.maximum(now / limit[:, :, None] - 1, 0.0)
        over = np.where(over < 1e-12, 0.0, over)
        late = np.maximum(total / problem.longest_batch, 1.0)
        value, _ = self._penalised(total, per_hour, over, late, block.broken[:, None, None])
        value = np.where(block.row[:, :, None] > 0, value, np.inf)
        flat = value.reshape(len(place), -1)
        best = flat.argmin(axis=1)
        which = np.arange(len(place))
        stage, option = np.divmod(best, tried.shape[2])
        changed = place.copy()
        changed[which, stage] = tried[which, stage, option]
        return changed, flat[which, best]

    def _parts_after(self, block: StageBlock, place: Ints, tried: Ints) -> PlanParts:
        """The parts of equation 4 [N, S, D] with one stage's ranks changed to those tried."""
        row = block.row[:, :, None]
        chain, *maxima = (part[block.row, place] for part in self.rows.parts)
        new_chain, *new_maxima = (part[row, tried] for part in self.rows.parts)
        others = (chain.sum(axis=1, keepdims=True) - chain)[:, :, None]
        return PlanParts(
            others + new_chain + self._waits_after(block, place, tried),
            *(
                np.maximum(_max_of_others(now)[:, :, None], changed)
                for now, changed in zip(maxima, new_maxima, strict=True)
            ),
        )

    def _waits_after(self, block: StageBlock, place: Ints, tried: Ints) -> Floats:
        """Waits between neighbours [N, S, D] with one stage's ranks changed to those tried."""
        out = self.rows.way_out[block.row, place]
        new = self.rows.way_out[block.row[:, :, None], tried]
        handed = block.handed[:, 1:]  # between each stage and the one after it
        now = np.abs(out[:, 1:] - out[:, :-1]) * handed
        waits = np.zeros_like(new) + now.sum(axis=1)[:, None, None]
        before, after = waits[:, 1:], waits[:, :-1]  # of a stage with the one before it, after it
        before += (np.abs(new[:, 1:] - out[:, :-1, None]) * handed[:, :, None]) - now[:, :, None]
        after += (np.abs(new[:, :-1] - out[:, 1:, None]) * handed[:, :, None]) - now[:, :, None]
        return np.asarray(waits)

    def _best_two_moves(self, block: StageBlock, place: Ints) -> tuple[Ints, Floats]:
        """The best change of the ranks of two stages for each placement, and its value."""
        row = block.row[:, :, None]
        low, high = self.rows.lowest[row], self.rows.highest[row]
        moves = _two_moves(place.shape[1]).T
        best, value = place, np.full(len(place), np.inf)
        for part in range(0, moves.shape[1], 128):
            tried = np.clip(place[:, :, None] + moves[:, part : part + 128], low, high)
            values, _ = self._value(block, tried)
            at = values.argmin(axis=1)
            which = np.arange(len(place))
            better = values[which, at] < value
            best = np.where(better[:, None], tried[which, :, at], best)
            value = np.where(better, values[which, at], value)
        return best, value

    def _tries(self, block: StageBlock, place: Ints, k: Floats, used: Floats, unit: Ints) -> Ints:
        """Places [N, S, D] to try for each stage: steps, and to the ends of the node."""
        spare = np.mod(-used, unit)
        partial = np.where(np.mod(used, unit) == 0, unit, np.mod(used, unit))
        ends = np.stack([k + spare, k - partial, k + spare + unit], axis=2)
        there = self.rows.place[np.clip(ends, 1, self.rows.counts[-1]).astype(np.int64)]
        tried = np.concatenate([place[:, :, None] + STEPS, there], axis=2)
        low, high = self.rows.lowest[block.row], self.rows.highest[block.row]
        return np.asarray(np.clip(tried, low[:, :, None], high[:, :, None]))


@cache
def _two_moves(num_stages: int) -> Ints:
    """All changes of two of so many stages by one rank or two, [D, S]."""
    moves = []
    for left, right in itertools.combinations(range(num_stages), 2):
        for steps in itertools.product((-1, 1), (-1, 1)):
            for factor in ((1, 1), (1, 2), (2, 1)):
                move = [0] * num_stages
                move[left], move[right] = steps[0] * factor[0], steps[1] * factor[1]
                moves.append(move)
    return np.array(moves)


def _max_of_others(values: Floats) -> Floats:
    """For each stage the maximum over the placement's other stages, [N, S]; at least 0."""
    if values.shape[1] == 1:
        return np.zeros_like(values)
    two = np.partition(values, -2, axis=1)[:, -2:]
    return np.where(values >= two[:, 1:], two[:, :1], two[:, 1:])
