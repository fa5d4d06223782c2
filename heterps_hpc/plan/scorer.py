"""Many placements scored at once: what the learning scheduler and its rivals search with.

Provisioning a placement exactly takes milliseconds; a search looks at 100,000 placements a second.
So the rank counts of every possible stage are worked out beforehand for a grid of (cap, price):
each stage takes the k that minimises ET + λ·$/hour subject to ET ≤ cap, which for the right cap and
λ is the best plan or close to it. A placement is scored by summing its stages' rows of that table
and taking the best column: a coarse pass over all columns, then a fine one around the best. The
result is a valid plan, so a score is never too good; the winners are provisioned exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.plan.cost_model import Choice, StageTable, batch_seconds, money_of, stages_of
from heterps_hpc.plan.exact.graph import StageOptions, make_options
from heterps_hpc.plan.problem import Floats, Ints

Floats32 = NDArray[np.float32]
STEP = 8  # fine columns per coarse column
MOST_TRIED_AGAIN = 64
PENALTY = 10.0  # a placement that misses the floor or a limit counts this many times its money


@dataclass(frozen=True, eq=False)
class Scores:
    """For each placement: money (with penalty if it breaks a bound) and whether it is valid."""

    money: Floats
    valid: NDArray[np.bool_]
    ranks: NDArray[np.int32]  # [N, L]: ranks of the stage that starts at a layer, else 0


@dataclass(frozen=True, eq=False)
class StageColumns:
    """The ranks that each stage takes in each column, and what it then adds; row 0 is no stage."""

    chain_seconds: Floats32  # [stages + 1, columns], as in equation 4
    prefetch_seconds: Floats32
    per_hour: Floats32
    ranks: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores placements of one question."""

    table: StageTable

    @cached_property
    def _options(self) -> StageOptions:
        """Stages with some of their rank counts: all small ones, then steps of a few per cent,
        which is close enough for a score."""
        limits = self.table.problem.pools.limit
        few = np.arange(1, min(16, int(limits.max())) + 1)
        steps = np.geomspace(few[-1], limits.max(), 64).astype(np.int64)
        counts = np.unique(np.concatenate([few, steps, limits]))
        return make_options(self.table, counts=counts, floor=False)

    @cached_property
    def _columns(self) -> tuple[Floats, Floats]:
        """Cap and price of each fine column; neighbours differ little."""
        options, problem = self._options, self.table.problem
        coarse = 32 if len(options) < 200_000 else 10
        same = np.diff(options.pair * options.num_pools + options.pool) == 0
        gain = -np.diff(options.ET)[same] / np.diff(options.per_hour)[same]
        gain = gain[gain > 0] if (gain > 0).any() else np.array([1.0])
        cheap, expensive = np.quantile(gain, [0.02, 0.98])
        slowest = min(problem.longest_batch, float(options.ET.max()))
        if problem.micro_batches == 1:  # only the sum of seconds counts
            prices = np.geomspace(cheap / 4, expensive * 4, coarse * STEP)
            return np.full(len(prices), slowest), prices
        fastest = float(np.quantile(options.ET, 0.01))
        few = 4 if problem.micro_batches < 16 else 1  # the sum counts by 1/m
        caps = np.geomspace(min(fastest, slowest / 2), slowest, coarse * STEP // few)
        prices = np.geomspace(cheap, expensive * 100, 4)[-few:]
        return np.tile(caps, few), np.repeat(prices, len(caps))

    @cached_property
    def _fine(self) -> StageColumns:
        """The ranks of least ET + λ·$/hour within the cap, per stage and fine column."""
        options, (caps, prices) = self._options, self._columns
        num_stages = len(self.table.pairs) * options.num_pools
        stage = options.pair * options.num_pools + options.pool
        row = np.repeat(np.arange(len(options.starts)), np.diff(options.starts, append=len(stage)))
        shape = (num_stages + 1, len(caps))
        chain, prefetch, per_hour = (np.full(shape, np.inf, np.float32) for _ in range(3))
        ranks = np.zeros(shape, np.int32)
        where = stage[options.starts] + 1
        for column, (cap, price) in enumerate(zip(caps, prices, strict=True)):
            weight = options.chain_seconds + options.prefetch_seconds * 1e-9
            weight = weight + price * options.per_hour
            weight = np.where(cap * (1 + 1e-9) >= options.ET, weight, 1e9 * options.ET + weight)
            best = np.minimum.reduceat(weight, options.starts)
            hits = np.flatnonzero(weight == best[row])
            _, first = np.unique(row[hits], return_index=True)
            chosen = hits[first]
            chain[where, column] = options.chain_seconds[chosen]
            prefetch[where, column] = options.prefetch_seconds[chosen]
            per_hour[where, column] = options.per_hour[chosen]
            ranks[where, column] = options.ranks[chosen]
        for part in (chain, prefetch, per_hour):
            part[0] = 0.0
        return StageColumns(chain, prefetch, per_hour, ranks)

    @cached_property
    def _coarse(self) -> StageColumns:
        fine, some = self._fine, slice(STEP // 2, None, STEP)
        return StageColumns(
            np.ascontiguousarray(fine.chain_seconds[:, some]),
            np.ascontiguousarray(fine.prefetch_seconds[:, some]),
            np.ascontiguousarray(fine.per_hour[:, some]),
            fine.ranks[:, some],
        )

    def score(self, placements: Ints) -> Scores:
        """Score placements given as pool indices, [N, L]."""
        stages = self._stages(placements)
        ranks = self._fine.ranks
        column = self._best_column(stages, self._coarse, None) * STEP
        fine = np.minimum(column[:, None] + np.arange(STEP), ranks.shape[1] - 1)
        best = self._best_column(stages, self._fine, fine)
        column = fine[np.arange(len(fine)), best]
        scores = self._exact_value(stages, ranks[stages, column[:, None]])
        return self._try_again(scores, stages, ranks)

    def _try_again(self, scores: Scores, stages: Ints, ranks: NDArray[np.int32]) -> Scores:
        """Look at every coarse column for placements that broke a limit which stages share (the
        quick pass cannot see those), the most promising ones first."""
        broken = np.flatnonzero(~scores.valid)
        broken = broken[np.argsort(scores.money[broken], kind="stable")][:MOST_TRIED_AGAIN]
        if not len(broken):
            return scores
        money, valid, chosen = scores.money.copy(), scores.valid.copy(), scores.ranks.copy()
        for column in range(STEP // 2, ranks.shape[1], STEP):
            again = self._exact_value(stages[broken], ranks[stages[broken], column])
            better = again.money < money[broken]
            rows = broken[better]
            money[rows], valid[rows] = again.money[better], again.valid[better]
            chosen[rows] = again.ranks[better]
        return Scores(money, valid, chosen)

    def _stages(self, placements: Ints) -> Ints:
        """Row of the table of the stage that starts at each layer; 0 where none starts."""
        num, length = placements.shape
        starts = np.ones((num, length), dtype=np.bool_)
        starts[:, 1:] = placements[:, 1:] != placements[:, :-1]
        last = np.full((num, length), length - 1)
        for layer in range(length - 2, -1, -1):
            last[:, layer] = np.where(starts[:, layer + 1], layer, last[:, layer + 1])
        pair = self.table.pair_index[np.arange(length), last]
        return np.where(starts, pair * self.table.problem.num_pools + placements + 1, 0)

    def _best_column(self, stages: Ints, table: StageColumns, columns: Ints | None) -> Ints:
        """Index of the column (or of the given columns) of least money within the floor."""
        problem, m = self.table.problem, self.table.problem.micro_batches
        width = table.ranks.shape[1] if columns is None else columns.shape[1]
        shape = (len(stages), width)
        chain_sum, chain_max, prefetch_max, per_hour = (
            np.zeros(shape, np.float32) for _ in range(4)
        )

        def rows(part: Floats32, stage: Ints) -> Floats32:
            return part[stage] if columns is None else part[stage[:, None], columns]

        prefetches = problem.staleness > 0
        for layer in range(stages.shape[1]):
            stage = stages[:, layer]
            chain = rows(table.chain_seconds, stage)
            chain_sum += chain
            per_hour += rows(table.per_hour, stage)
            if m > 1:
                np.maximum(chain_max, chain, out=chain_max)
            if prefetches and problem.layers.is_embedding[layer]:
                np.maximum(prefetch_max, rows(table.prefetch_seconds, stage), out=prefetch_max)
        seconds = batch_seconds(chain_sum, chain_max, prefetch_max, m)
        value = seconds * per_hour
        late = seconds > problem.longest_batch * (1 + 1e-6)
        value = np.where(late, np.float32(1e12) * seconds, value)
        return np.asarray(np.argmin(value, axis=1))

    def _exact_value(self, stages: Ints, ranks: NDArray[np.int32]) -> Scores:
        """Money of the chosen ranks in double precision, nodes and limits included."""
        problem = self.table.problem
        exists = stages > 0
        pair, pool = np.divmod(np.maximum(stages - 1, 0), problem.num_pools)
        impossible = (exists & (ranks == 0)).any(axis=1)  # a stage that fits nowhere on its pool
        ranks = np.where(exists, np.maximum(ranks, 1), 0)
        costs = self.table.evaluate_many(pair, pool, ranks)
        money = money_of(problem, costs.seconds, costs.per_hour)
        over = np.maximum(costs.used / problem.pools.limit, 1.0).prod(axis=1)
        late = np.maximum(costs.seconds / problem.longest_batch, 1.0)
        valid = (over <= 1.0) & (late <= 1 + 1e-12) & ~impossible
        missed = PENALTY * over * late * np.where(impossible, PENALTY, 1.0)
        return Scores(np.where(valid, money, money * missed), valid, ranks * exists)

    def choices(self, placement: Ints, ranks: NDArray[np.int32]) -> tuple[Choice, ...]:
        """The plan that a score stands for."""
        return tuple(Choice(*run, int(ranks[run[0]])) for run in stages_of(placement.tolist()))
