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

from heterps_hpc.plan.cost_model import Choice, StageTable, stages_of
from heterps_hpc.plan.exact.graph import Options, make_options
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
class Scorer:
    """Scores placements of one question."""

    table: StageTable

    @cached_property
    def _options(self) -> Options:
        """Stages with some of their rank counts: all small ones, then steps of a few per cent,
        which is close enough for a score."""
        counts = self.table.ranks
        steps = np.unique(np.geomspace(16, max(16, counts.max()), 64).astype(np.int64))
        some = np.isin(counts, np.concatenate([np.arange(1, 17), steps, self._limits]))
        return make_options(self.table, columns=np.flatnonzero(some), floor=False)

    @property
    def _limits(self) -> Ints:
        return self.table.problem.pools.limit

    @cached_property
    def _columns(self) -> tuple[Floats, Floats]:
        """Cap and price of each fine column; neighbours differ little."""
        options, problem = self._options, self.table.problem
        coarse = 32 if len(options) < 200_000 else 10
        same = np.diff(options.pair * options.num_pools + options.pool) == 0
        gain = -np.diff(options.ET)[same] / np.diff(options.c)[same]
        gain = gain[gain > 0] if (gain > 0).any() else np.array([1.0])
        cheap, dear = np.quantile(gain, [0.02, 0.98])
        slowest = min(problem.longest_batch, float(options.ET.max()))
        if problem.micro_batches == 1:  # only the sum of seconds counts
            prices = np.geomspace(cheap / 4, dear * 4, coarse * STEP)
            return np.full(len(prices), slowest), prices
        fastest = float(np.quantile(options.ET, 0.01))
        few = 4 if problem.micro_batches < 16 else 1  # the sum counts by 1/m
        caps = np.geomspace(min(fastest, slowest / 2), slowest, coarse * STEP // few)
        prices = np.geomspace(cheap, dear * 100, 4)[-few:]
        return np.tile(caps, few), np.repeat(prices, len(caps))

    @cached_property
    def _tables(self) -> tuple[list[Floats32], NDArray[np.int32]]:
        """E, C (and M, X where they count) and ranks per (stage, fine column); row 0 is empty."""
        options, (caps, prices) = self._options, self._columns
        num_stages = len(self.table.pairs) * options.num_pools
        stage = options.pair * options.num_pools + options.pool
        row = np.repeat(np.arange(len(options.starts)), np.diff(options.starts, append=len(stage)))
        parts = (options.e, options.c, options.M, options.X)
        tables = [np.full((num_stages + 1, len(caps)), np.inf, np.float32) for _ in parts]
        ranks = np.zeros((num_stages + 1, len(caps)), np.int32)
        where = stage[options.starts] + 1
        for column, (cap, price) in enumerate(zip(caps, prices, strict=True)):
            weight = options.e + options.X * 1e-9 + price * options.c
            weight = np.where(cap * (1 + 1e-9) >= options.ET, weight, 1e9 * options.ET + weight)
            best = np.minimum.reduceat(weight, options.starts)
            hits = np.flatnonzero(weight == best[row])
            _, first = np.unique(row[hits], return_index=True)
            chosen = hits[first]
            for target, values in zip(tables, parts, strict=True):
                target[where, column] = values[chosen]
            ranks[where, column] = options.ranks[chosen]
        for target in tables:
            target[0] = 0.0
        return tables, ranks

    @cached_property
    def _coarse_tables(self) -> list[Floats32]:
        return [np.ascontiguousarray(part[:, STEP // 2 :: STEP]) for part in self._tables[0]]

    def score(self, placements: Ints) -> Scores:
        """Score placements given as pool indices, [N, L]."""
        stages = self._stages(placements)
        (e, c, most, ahead), ranks = self._tables
        num_columns = e.shape[1]
        column = self._best_column(stages, self._coarse_tables, None) * STEP
        fine = np.minimum(column[:, None] + np.arange(STEP), num_columns - 1)
        best = self._best_column(stages, [e, c, most, ahead], fine)
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

    def _best_column(self, stages: Ints, tables: list[Floats32], columns: Ints | None) -> Ints:
        """Index of the column (or of the given columns) of least money within the floor."""
        problem, m = self.table.problem, self.table.problem.micro_batches
        width = tables[0].shape[1] if columns is None else columns.shape[1]
        shape = (len(stages), width)
        e, c, most, ahead = (np.zeros(shape, np.float32) for _ in range(4))

        def rows(table: Floats32, stage: Ints) -> Floats32:
            return table[stage] if columns is None else table[stage[:, None], columns]

        works_ahead = self.table.problem.staleness > 0
        for layer in range(stages.shape[1]):
            stage = stages[:, layer]
            e += rows(tables[0], stage)
            c += rows(tables[1], stage)
            if m > 1:
                np.maximum(most, rows(tables[2], stage), out=most)
            if works_ahead and self.table.problem.layers.is_embedding[layer]:
                np.maximum(ahead, rows(tables[3], stage), out=ahead)
        seconds = np.maximum(e / m + (1 - 1 / m) * most, ahead)
        value = seconds * c
        late = seconds > problem.longest_batch * (1 + 1e-6)
        value = np.where(late, np.float32(1e12) * seconds, value)
        return np.asarray(np.argmin(value, axis=1))

    def _exact_value(self, stages: Ints, ranks: NDArray[np.int32]) -> Scores:
        """Money of the chosen ranks in double precision, nodes and limits included."""
        table, problem = self.table, self.table.problem
        exists = stages > 0
        pair, pool = np.divmod(np.maximum(stages - 1, 0), problem.num_pools)
        impossible = (exists & (ranks == 0)).any(axis=1)  # a stage that fits nowhere on its pool
        ranks = np.where(exists, np.maximum(ranks, 1), 0)
        column = np.searchsorted(table.ranks, np.maximum(ranks, 1))
        seconds = np.where(exists, table.ET[pair, pool, column], 0.0)
        joins = table.in_sum[pair]
        chain, m = np.where(joins, seconds, 0.0), problem.micro_batches
        total = chain.sum(axis=1) / m + (1 - 1 / m) * chain.max(axis=1)
        total = np.maximum(total, np.where(joins, 0.0, seconds).max(axis=1))
        used = np.zeros((len(stages), problem.num_pools), dtype=np.int64)
        row = np.broadcast_to(np.arange(len(stages))[:, None], stages.shape)
        np.add.at(used, (row[exists], pool[exists]), ranks[exists])
        units = -(-used // problem.pools.ranks_per_unit)
        money = problem.num_batches / 3600 * total * (units * problem.pools.price).sum(axis=1)
        over = np.maximum(used / problem.pools.limit, 1.0).prod(axis=1)
        late = np.maximum(total / problem.longest_batch, 1.0)
        valid = (over <= 1.0) & (late <= 1 + 1e-12) & ~impossible
        missed = PENALTY * over * late * np.where(impossible, PENALTY, 1.0)
        return Scores(np.where(valid, money, money * missed), valid, ranks * exists)

    def choices(self, placement: Ints, ranks: NDArray[np.int32]) -> tuple[Choice, ...]:
        """The plan that a score stands for."""
        return tuple(Choice(*run, int(ranks[run[0]])) for run in stages_of(placement.tolist()))
