"""Stage covers as paths: options (stages with their ranks), and the best way before and after each.

A plan is a path over positions 0 … L in the list of layers; an option is an edge from `first` to
`last + 1`. Neighbouring edges are on different pools, because a stage is a maximal run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from heterps_hpc.plan.cost_model import ROUNDING, Choice, StageTable
from heterps_hpc.plan.pipeline import PlanParts
from heterps_hpc.plan.problem import Bools, Floats, Ints

EVERY_COUNT_UP_TO = 256  # beyond, options start as blocks of counts
BLOCKS_PER_E_FOLD = 128  # so wide: their bounds are within a per cent of what they hold
SPLIT = 8  # parts that a block is split into

Run = tuple[int, int, int]  # first layer, last layer, pool


@dataclass(frozen=True, eq=False)
class StageOptions:
    """Stages with a number of ranks, or a block of numbers, that may be part of a best plan.

    Flat arrays, by (pair, pool) and then by ranks. A block has the least seconds, price and ranks
    of its counts, so that bounds made of it hold for each of them.
    """

    num_layers: int
    num_pools: int
    pair_index: Ints
    pair: Ints
    first: Ints
    last: Ints
    pool: Ints
    ranks: Ints
    max_ranks: Ints  # of a block; else as `ranks`
    ET: Floats
    parts: PlanParts  # what each option by itself adds to equation 4
    per_hour: Floats  # $, nodes shared
    way_out: Floats  # seconds per byte that leaves the stage; of a block the least,
    max_way_out: Floats  # and the most
    handed_over: Floats  # bytes between two stages by where they meet, [L+1]
    starts: Ints  # where each (pair, pool) begins

    def __len__(self) -> int:
        return len(self.ET)

    @cached_property
    def alone(self) -> Floats:
        """What no batch is faster than, whatever the other stages: a stage, or its link."""
        return np.maximum(self.ET, np.maximum(self.parts.chain_max, self.parts.rows_max))

    @cached_property
    def is_block(self) -> Bools:
        """Options that stand for several numbers of ranks."""
        return np.asarray(self.max_ranks > self.ranks)

    def choices(self, path: Sequence[int]) -> tuple[Choice, ...]:
        """The stages of a path, blocks by their fewest ranks."""
        return tuple(
            Choice(int(self.first[i]), int(self.last[i]), int(self.pool[i]), int(self.ranks[i]))
            for i in path
        )

    def largest_choices(self, path: Sequence[int]) -> tuple[Choice, ...]:
        """The stages of a path, blocks by their most ranks."""
        return tuple(
            replace(choice, ranks=int(self.max_ranks[i]))
            for choice, i in zip(self.choices(path), path, strict=True)
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
    """Options that fit, meet the floor, and are not slower than one with fewer ranks.

    All stages, or only those given as (first, last, pool); all rank counts (many of them as
    blocks), or only some; with `floor` off, also stages that are too slow for the floor.
    """
    num_pools = table.problem.num_pools
    if runs is None:
        pairs = np.repeat(np.arange(len(table.pairs)), num_pools)
        pools = np.tile(np.arange(num_pools), len(table.pairs))
    else:
        pairs = np.array([table.pair_index[first, last] for first, last, _ in runs], dtype=np.int64)
        pools = np.array([pool for _, _, pool in runs], dtype=np.int64)
    low, high = (counts, counts) if counts is not None else _first_blocks(table)
    shape = (len(pairs), len(low))
    longest = table.problem.longest_batch if floor else np.inf
    low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
    return _gather(table, *_useful(table, pairs, pools, low, high, longest))


def split_blocks(table: StageTable, options: StageOptions, picked: Ints) -> StageOptions:
    """Some options, their blocks replaced by smaller ones."""
    is_block = options.is_block[picked]
    whole, blocks = picked[~is_block], picked[is_block]
    size = options.max_ranks[blocks] - options.ranks[blocks] + 1
    parts = np.minimum(size, SPLIT)[:, None]
    part = np.arange(SPLIT)
    low = options.ranks[blocks][:, None] + size[:, None] * part // parts
    high = options.ranks[blocks][:, None] + size[:, None] * (part + 1) // parts - 1
    low = np.where(part < parts, low, np.iinfo(np.int64).max // 4)  # beyond every limit
    pair, pool, few, most = _useful(
        table, options.pair[blocks], options.pool[blocks], low, high, table.problem.longest_batch
    )
    return _gather(
        table,
        np.concatenate([options.pair[whole], pair]),
        np.concatenate([options.pool[whole], pool]),
        np.concatenate([options.ranks[whole], few]),
        np.concatenate([options.max_ranks[whole], most]),
    )


def take(table: StageTable, options: StageOptions, picked: Ints) -> StageOptions:
    """Some of the options."""
    return _gather(
        table,
        options.pair[picked],
        options.pool[picked],
        options.ranks[picked],
        options.max_ranks[picked],
    )


def _first_blocks(table: StageTable) -> tuple[Ints, Ints]:
    """First and last count of blocks that cover all numbers of ranks; small numbers one by one."""
    limit = int(table.problem.pools.limit.max())
    first = np.arange(1, min(limit, EVERY_COUNT_UP_TO) + 1)
    if limit > EVERY_COUNT_UP_TO:
        num = int(np.log(limit / EVERY_COUNT_UP_TO) * BLOCKS_PER_E_FOLD) + 2
        more = np.geomspace(EVERY_COUNT_UP_TO + 1, limit + 1, num)[:-1].astype(np.int64)
        first = np.unique(np.concatenate([first, more]))
    return first, np.append(first[1:] - 1, limit)


def _useful(
    table: StageTable, pairs: Ints, pools: Ints, low: Ints, high: Ints, longest: float
) -> tuple[Ints, Ints, Ints, Ints]:
    """Pairs, pools, first and last counts of the blocks [rows, blocks] that may be of use: they
    fit, meet the floor, and hold something faster than all counts before them."""
    pair, pool = pairs[:, None], pools[:, None]
    high = np.minimum(high, table.problem.pools.limit[pool])
    possible = low <= high
    low = np.where(possible, low, high)
    within = longest * (1 + ROUNDING)
    least, reached = table.parts(pair, pool, low, high), table.parts(pair, pool, high)
    rows, cut = table.rows_seconds(pair, pool, high), table.cut_seconds(pair, pool, high)
    cut = np.where(table.in_chain[pair], cut, 0.0)  # of tables alone, nobody waits for that
    in_time = np.maximum(least.whole, np.maximum(rows, cut)) <= within
    possible = possible & table.fits(pair, pool, high) & in_time
    there = possible & (reached.whole <= within)  # a block really has it, at one of its counts
    m, summed = table.problem.micro_batches, table.problem.pipeline.summed
    # with more ranks its neighbours may wait less, but by no more than if theirs took no time
    waits = table.handed_over[table.pairs[:, 0]] + table.handed_over[table.pairs[:, 1] + 1]
    waits = waits[pair] * table.way_out(pool, high)
    beside_whole, beside_sum = (cut + waits) / m, m * cut + waits
    useful = _not_dominated(
        (least.whole + beside_whole, np.where(there, reached.whole + beside_whole, np.inf)),
        (summed(*least) + beside_sum, np.where(there, summed(*reached) + beside_sum, np.inf)),
        rows,
    )
    useful = possible & (useful | (table.tables_only[pair] & (rows > 0)))
    row, column = np.nonzero(useful)
    return pairs[row], pools[row], low[row, column], high[row, column]


def _not_dominated(
    whole: tuple[Floats, Floats], summed: tuple[Floats, Floats], rows: Floats
) -> Bools:
    """Blocks [rows, blocks] of a chain's stage that may do what no count before them does.

    `whole` is what T is if the stage is the slowest, and `summed` what it adds to the chain's sum,
    m · cut where its link is the slowest, each as a bound on the block and as one of its counts
    reaches it. Both hold the most that cuts and waits, which fall with ranks, may add: what is no
    better with that is no better with less. T grows with both, so a block is of no use if a count
    before it is no worse in both. More ranks make the stage's link faster, too: of the loop
    (equation 4) the stage adds summed/m + 2/m · rows or more, and a link that takes longer than its
    stage may bind alone. Compared with the count before that adds least.
    """
    added = whole[1] + 2 * rows
    place = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
    best = np.maximum.accumulate(
        np.where(added <= np.minimum.accumulate(added, axis=1), place, 0), axis=1
    )

    def before(values: Floats) -> Floats:
        found = np.take_along_axis(values, best, axis=1)
        return np.concatenate([np.full((len(rows), 1), np.inf), found[:, :-1]], axis=1)

    useful = before(rows) > before(whole[1])  # the link binds
    for least, reached in (whole, summed):
        useful |= (least < before(reached)) | (least + 2 * rows < before(reached + 2 * rows))
    return np.asarray(useful)


def _gather(
    table: StageTable, pair: Ints, pool: Ints, ranks: Ints, max_ranks: Ints
) -> StageOptions:
    """The options of these blocks, in order."""
    num_pools = table.problem.num_pools
    order = np.lexsort((ranks, pair * num_pools + pool))
    pair, pool, ranks, max_ranks = pair[order], pool[order], ranks[order], max_ranks[order]
    return StageOptions(
        num_layers=table.problem.num_layers,
        num_pools=num_pools,
        pair_index=table.pair_index,
        pair=pair,
        first=table.pairs[pair, 0],
        last=table.pairs[pair, 1],
        pool=pool,
        ranks=ranks,
        max_ranks=max_ranks,
        ET=table.parts(pair, pool, ranks, max_ranks).whole,
        parts=table.plan_parts(pair, pool, ranks, max_ranks),
        per_hour=table.rate(pool, ranks),
        way_out=table.way_out(pool, max_ranks),
        max_way_out=table.way_out(pool, ranks),
        handed_over=table.handed_over,
        starts=np.flatnonzero(np.diff(pair * num_pools + pool, prepend=-1)),
    )


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
