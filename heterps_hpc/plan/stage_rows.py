"""The stages of many placements at once, and what each may take by its number of ranks.

Every stage (first layer, last layer, pool) has a row of seconds by number of ranks, which is made
when the stage is first met. For a grid of (cap, price) a row also gives the k of least
e/m + price·$/hour with ET ≤ cap, from which a placement's ranks are looked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.pipeline import PlanParts
from heterps_hpc.plan.problem import Floats, Ints

EVERY_COUNT_UP_TO = 64  # larger numbers of ranks go in steps of about 3 %


@dataclass(frozen=True, eq=False)
class StageBlock:
    """The stages of N placements, S at most in each; `row` 0 is no stage."""

    row: Ints  # [N, S]
    first: Ints  # [N, S]: the layer that a stage starts with
    pool: Ints  # [N, S]
    same: Floats  # [N, S, S]: 1 where two stages are on one pool
    share: Floats  # [N, S]: 1 / number of the placement's stages on the pool; 0 for no stage
    handed: Floats  # [N, S]: bytes of activations between a stage and the one before it
    broken: Floats  # [N]: stages that fit on their pool with no number of ranks

    def take(self, which: Ints) -> StageBlock:
        """Some of the placements."""
        return StageBlock(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


class StageRows:
    """Rows of stages of one question, made as they are met."""

    def __init__(self, table: StageTable, *, fine: bool) -> None:
        self.table = table
        problem = table.problem
        self.counts = _rank_counts(problem.pools.limit)
        self.place = np.searchsorted(self.counts, np.arange(self.counts[-1] + 2), side="right")
        self.place = np.maximum(self.place - 1, 0)  # k → place of the largest count ≤ k
        self._rate = problem.pools.price / problem.pools.ranks_per_unit
        self._caps, self._prices = self._grid(fine)
        width = len(self._caps) * len(self._prices)
        self._row_of = np.zeros(len(table.pairs) * problem.num_pools, dtype=np.int64)
        self._num_rows = 1
        # of each row, by place in `counts`; row 0 is no stage
        # what a stage adds to equation 4; the chain's sum is infinite where it does not fit
        self.parts = PlanParts(*(np.zeros((1, len(self.counts))) for _ in PlanParts._fields))
        self.way_out = np.zeros((1, len(self.counts)))  # seconds per byte that leaves a stage
        self.start = np.zeros((1, width), dtype=np.int64)  # places, by column of the grid
        self.lowest = np.zeros(1, dtype=np.int64)
        self.highest = np.zeros(1, dtype=np.int64)
        self._broken = np.zeros(1)

    def _grid(self, fine: bool) -> tuple[Floats, Floats]:
        """Caps on a stage's seconds, and prices of money in seconds."""
        table, m = self.table, self.table.problem.micro_batches
        pools = np.arange(table.problem.num_pools)
        pairs = np.arange(0, len(table.pairs), max(1, len(table.pairs) // 500))
        cell = (pairs[:, None, None], pools[:, None], self.counts)
        fits = table.fits(*cell)
        et = np.where(fits, table.stage_seconds(*cell), np.inf)
        if not fits.any():
            return np.array([np.inf]), np.array([1.0])
        slowest = min(table.problem.longest_batch, float(et[np.isfinite(et)].max()))
        fastest = min(float(np.quantile(et.min(axis=2), 0.02)), slowest / 2)
        num_caps, num_prices = (16, 2) if m >= 16 else (12, 3) if m >= 4 else (4, 9)
        if fine:
            num_caps, num_prices = 4 * num_caps, 3 * num_prices
        caps = np.geomspace(fastest, slowest, num_caps)
        low = et.min(axis=2)
        low, cost = low[np.isfinite(low)], self._rate.mean() * self.counts.mean()
        scale = float(np.median(low)) / cost / m
        prices = np.geomspace(scale * 1e-3, scale * 1e2, num_prices)
        return caps, prices

    def _add_rows(self, stages: Ints) -> None:
        """Seconds and places in the grid of stages (pair · P + pool) not met before."""
        table, problem = self.table, self.table.problem
        pair, pool = np.divmod(stages, problem.num_pools)
        cell = (pair[:, None], pool[:, None], self.counts)
        et, fits = table.stage_seconds(*cell), table.fits(*cell)
        broken = ~fits.any(axis=1)
        fits[broken] = self.counts <= problem.pools.limit[pool[broken], None]
        et = np.minimum.accumulate(np.where(fits, et, np.inf), axis=1)
        own = table.plan_parts(*cell)
        own = own._replace(chain_sum=np.where(fits, own.chain_sum, np.inf))
        added = np.minimum.accumulate(own.chain_sum, axis=1) / problem.micro_batches
        lowest = fits.argmax(axis=1)
        highest = len(self.counts) - 1 - fits[:, ::-1].argmax(axis=1)
        first = (et[:, :, None] > self._caps * (1 + 1e-12)).sum(axis=1)
        first = np.minimum(first, highest[:, None])
        starts = []
        for price in self._prices:
            weight = added + 1e-12 * et  # tables alone add nothing to the chain
            weight = weight + price * self._rate[pool][:, None] * self.counts
            starts.append(np.take_along_axis(_argmin_from(weight), first, axis=1))
        new = np.arange(self._num_rows, self._num_rows + len(stages))
        self._row_of[stages] = new
        self._num_rows += len(stages)
        start = np.clip(np.concatenate(starts, axis=1), lowest[:, None], highest[:, None])
        known = zip(self.parts, own, strict=True)
        self.parts = PlanParts(*(np.concatenate(part) for part in known))
        self.way_out = np.concatenate([self.way_out, table.way_out(pool[:, None], self.counts)])
        self.start = np.concatenate([self.start, start])
        self.lowest = np.concatenate([self.lowest, lowest])
        self.highest = np.concatenate([self.highest, highest])
        self._broken = np.concatenate([self._broken, broken.astype(np.float64)])

    def block(self, placements: Ints) -> StageBlock:
        """The stages of the placements."""
        problem = self.table.problem
        num, length = placements.shape
        starts = np.ones((num, length), dtype=np.bool_)
        starts[:, 1:] = placements[:, 1:] != placements[:, :-1]
        slot = np.cumsum(starts, axis=1) - 1
        size = int(slot[:, -1].max()) + 1
        where, layer = np.nonzero(starts)
        at = (where, slot[where, layer])
        first = np.full((num, size + 1), length)
        first[at] = layer
        last = first[:, 1:] - 1
        first = first[:, :-1]
        exists = first < length
        first = np.where(exists, first, 0)
        pool = np.where(exists, placements[np.arange(num)[:, None], first], -1)
        pair = self.table.pair_index[first, np.where(exists, last, 0)]
        stage = np.where(exists, pair * problem.num_pools + pool, 0)
        met = np.unique(stage[exists])
        new = met[self._row_of[met] == 0]
        if len(new):
            self._add_rows(new)
        row = np.where(exists, self._row_of[stage], 0)
        same = (pool[:, :, None] == pool[:, None, :]) & exists[:, :, None]
        return StageBlock(
            row=row,
            first=first,
            pool=pool,
            same=same.astype(np.float64),
            handed=self.table.handed_over[first] * exists,
            share=exists / np.maximum(same.sum(axis=2), 1),
            broken=self._broken[row].sum(axis=1),
        )


def _rank_counts(limit: Ints) -> Ints:
    """Numbers of ranks that are looked at."""
    most = int(limit.max())
    small = np.arange(1, min(most, EVERY_COUNT_UP_TO) + 1)
    steps = np.geomspace(small[-1], most, 128).astype(np.int64)
    return np.unique(np.concatenate([small, steps, limit]))


def _argmin_from(weight: Floats) -> Ints:
    """For each place of each row, where the least weight at or after it first occurs."""
    least = np.minimum.accumulate(weight[:, ::-1], axis=1)[:, ::-1]
    at = np.where(weight <= least, np.arange(weight.shape[1]), weight.shape[1])
    return np.asarray(np.minimum.accumulate(at[:, ::-1], axis=1)[:, ::-1])
