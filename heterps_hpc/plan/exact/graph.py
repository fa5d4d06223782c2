"""Stage covers as paths: options (stages with their ranks), and the best way before and after each.

A plan is a path over positions 0 … L in the list of layers; an option is an edge from `first` to
`last + 1`. Neighbouring edges are on different pools, because a stage is a maximal run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterps_hpc.plan.cost_model import ROUNDING, Choice, StageTable
from heterps_hpc.plan.problem import Floats, Ints

EVERY_RANK_COUNT_UP_TO = 256  # beyond, rank counts go in steps of 1/128

Run = tuple[int, int, int]  # first layer, last layer, pool


@dataclass(frozen=True, eq=False)
class StageOptions:
    """Every stage with every number of ranks that may be part of a best plan, as flat arrays."""

    num_layers: int
    num_pools: int
    pair_index: Ints
    pair: Ints
    first: Ints
    last: Ints
    pool: Ints
    ranks: Ints
    ET: Floats
    chain_seconds: Floats  # ET, or 0 for tables that prefetch: the terms of equation 4
    prefetch_seconds: Floats  # ET of tables that prefetch, else 0
    per_hour: Floats  # $, nodes shared
    starts: Ints  # where each (pair, pool) begins

    def __len__(self) -> int:
        return len(self.ET)

    def choices(self, path: Sequence[int]) -> tuple[Choice, ...]:
        """The stages of a path."""
        return tuple(
            Choice(int(self.first[i]), int(self.last[i]), int(self.pool[i]), int(self.ranks[i]))
            for i in path
        )

    def best(self, values: Floats) -> Floats:
        """The least value of each (pair, pool) over its numbers of ranks, [pairs, P]."""
        num_pairs = self.num_layers * (self.num_layers + 1) // 2
        out = np.full((num_pairs, self.num_pools), np.inf)
        if len(self):
            low = np.minimum.reduceat(values, self.starts)
            out[self.pair[self.starts], self.pool[self.starts]] = low
        return out


def make_options(
    table: StageTable,
    runs: Sequence[Run] | None = None,
    *,
    counts: Ints | None = None,
    floor: bool = True,
) -> StageOptions:
    """StageOptions that fit, meet the floor, and are not slower than one with fewer ranks.

    All stages, or only those given as (first, last, pool); all rank counts, or only some;
    with `floor` off, also stages that are too slow for the floor.
    """
    num_pools = table.problem.num_pools
    if runs is None:
        pairs = np.repeat(np.arange(len(table.pairs)), num_pools)
        pools = np.tile(np.arange(num_pools), len(table.pairs))
    else:
        pairs = np.array([table.pair_index[first, last] for first, last, _ in runs])
        pools = np.array([pool for _, _, pool in runs])
    counts = rank_counts(table) if counts is None else counts
    et = table.stage_seconds(pairs[:, None], pools[:, None], counts)
    longest = table.problem.longest_batch * (1 + ROUNDING) if floor else np.inf
    valid = table.fits(pairs[:, None], pools[:, None], counts) & (et <= longest)
    et = np.where(valid, et, np.inf)
    fastest_so_far = np.minimum.accumulate(et, axis=1)
    before = np.concatenate([np.full((len(et), 1), np.inf), fastest_so_far[:, :-1]], axis=1)
    row, column = np.nonzero(et < before)
    pair, pool, seconds = pairs[row], pools[row], et[row, column]
    ranks, in_chain = counts[column], table.in_chain[pair]
    return StageOptions(
        num_layers=table.problem.num_layers,
        num_pools=num_pools,
        pair_index=table.pair_index,
        pair=pair,
        first=table.pairs[pair, 0],
        last=table.pairs[pair, 1],
        pool=pool,
        ranks=ranks,
        ET=seconds,
        chain_seconds=np.where(in_chain, seconds, 0.0),
        prefetch_seconds=np.where(in_chain, 0.0, seconds),
        per_hour=table.rate(pool, ranks),
        starts=np.flatnonzero(np.diff(row, prepend=-1)),
    )


def rank_counts(table: StageTable) -> Ints:
    """Candidate numbers of ranks of one stage."""
    limits = table.problem.pools.limit
    counts = np.arange(1, min(int(limits.max()), EVERY_RANK_COUNT_UP_TO) + 1)
    if limits.max() > EVERY_RANK_COUNT_UP_TO:
        steps = np.log(limits.max() / EVERY_RANK_COUNT_UP_TO) * 128
        more = np.geomspace(EVERY_RANK_COUNT_UP_TO, limits.max(), int(steps) + 2)
        counts = np.concatenate([counts, more.astype(np.int64), limits])
    return np.unique(counts)


def but_own(values: Floats) -> Floats:
    """For each pool the least value among the other pools."""
    if len(values) == 1:
        return np.array([np.inf])
    order = np.argpartition(values, 1)[:2]
    best, second = sorted(order, key=lambda index: values[index])
    out = np.full(len(values), values[best])
    out[best] = values[second]
    return out


@dataclass(frozen=True, eq=False)
class Ways:
    """Least weight of the paths before and after each (position, pool)."""

    after: Floats  # [L+1, P]: from a position whose last pool is given
    before: Floats  # [L+1, P]: to a position whose next pool is given
    whole: float


def least_ways(options: StageOptions, weight: Floats, *, bottleneck: bool = False) -> Ways:
    """Shortest paths both ways; the sum of weights, or their maximum."""
    join = np.maximum if bottleneck else np.add
    num = options.num_layers
    best = options.best(weight)
    after = np.zeros((num + 1, options.num_pools))
    whole = np.inf
    for position in range(num - 1, -1, -1):
        stages = options.pair_index[position, position:num]
        starting = join(best[stages], after[position + 1 :]).min(axis=0)
        after[position] = but_own(starting)
        whole = float(starting.min())
    before = np.zeros((num + 1, options.num_pools))
    for position in range(1, num + 1):
        stages = options.pair_index[:position, position - 1]
        before[position] = but_own(join(best[stages], before[:position]).min(axis=0))
    return Ways(after, before, whole)


def shortest_path(options: StageOptions, weight: Floats, ways: Ways) -> list[int]:
    """StageOptions of one lightest path."""
    chosen: list[int] = []
    position, pool = 0, -1
    while position < options.num_layers:
        total = weight + ways.after[options.last + 1, options.pool]
        total = np.where((options.first == position) & (options.pool != pool), total, np.inf)
        index = int(np.argmin(total))
        if not np.isfinite(total[index]):
            return []
        chosen.append(index)
        position, pool = int(options.last[index]) + 1, int(options.pool[index])
    return chosen
