"""One interval of C as a mixed-integer linear programme, solved by scipy's HiGHS.

Where several stages share the limit of a pool, labels can hardly be compared: every one has used
other ranks. A solver that branches on the whole plan does not mind. Per option o one binary x_o:

    path          Σ x_o that start at a position = Σ that end there; one starts at 0
    neighbours    Σ x_o on a pool that start at or end at a position ≤ 1: stages are maximal runs
    limits        Σ ranks_o · x_o ≤ limit of the pool;  units of node-billed pools are integers
    chain_max     M ≥ Σ slowest_o · x_o over the options that cover a layer (exactly one does)
    tables_max    X ≥ Σ tables_o · x_o, and rows_max R ≥ Σ rows_o · x_o, likewise
    waits         W_p ≥ ± handed_p · (Σ way_out_o · x_o that end at p − Σ that of those that start)
    seconds       T ≥ Σ chain_o · x_o / m + (1 − 1/m) · M,   T ≥ X,   T ≥ R,   T ≤ longest,
                  (s + 1) · T ≥ Σ chain_o · x_o / m + (1 − 1/m) · M + X + 2/m · R   (equation 4),
                  with Σ W_p / m added to both sums of the chain
    money         low ≤ C = Σ per_hour_o · x_o ≤ high
    minimise      T + λ · C, with λ the slope of the chord of T · C = Z over the interval

HiGHS keeps to integers and bounds within 1e-6, so what it proves holds within `TOLERANCE`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds as Box
from scipy.optimize import LinearConstraint, milp

from heterps_hpc.plan.exact.bounds import Bounds
from heterps_hpc.plan.exact.graph import StageOptions
from heterps_hpc.plan.pipeline import Pipeline
from heterps_hpc.plan.problem import Floats, Ints

TOLERANCE = 1e-6
MAX_OPTIONS = 8_000  # beyond, the interval is better cut first
SCALE = 1e3  # seconds and $/hour are scaled to this size, far above HiGHS's absolute tolerances


@dataclass(frozen=True)
class MilpAnswer:
    """The least T + λ·C of the interval: a bound on it (infinite: no plan), and a plan."""

    path: list[int]  # options, in order; empty if none was found
    bound: float
    complete: bool  # False: out of time


@dataclass
class _Rows:
    """Rows of a sparse matrix, collected part by part."""

    row: list[Ints] = field(default_factory=list)
    column: list[Ints] = field(default_factory=list)
    value: list[Floats] = field(default_factory=list)
    low: list[Floats] = field(default_factory=list)
    high: list[Floats] = field(default_factory=list)
    count: int = 0

    def entries(self, row: Ints, column: Ints, value: Floats) -> None:
        """Add values to rows of the block that is begun, counted from its first."""
        self.row.append(row + self.count)
        self.column.append(column)
        self.value.append(value)

    def end_block(self, low: Floats, high: Floats) -> None:
        """Close a block with the limits of its rows."""
        self.low.append(low)
        self.high.append(high)
        self.count += len(low)

    def constraint(self, num_columns: int) -> LinearConstraint:
        """All rows, those without entries dropped."""
        place = (np.concatenate(self.row), np.concatenate(self.column))
        shape = (self.count, num_columns)
        matrix = sparse.coo_array((np.concatenate(self.value), place), shape).tocsr()
        used = np.flatnonzero(np.diff(matrix.indptr))
        low, high = np.concatenate(self.low), np.concatenate(self.high)
        return LinearConstraint(matrix[used], low[used], high[used])


def best_of_interval(
    options: StageOptions, picked: Ints, bounds: Bounds, seconds: float, gap: float = TOLERANCE / 10
) -> MilpAnswer:
    """The best plan of an interval made of the picked options, within the time and the gap."""
    num = len(picked)
    if not num:
        return MilpAnswer([], math.inf, True)
    problem = bounds.problem
    shared = np.flatnonzero(problem.pools.ranks_per_unit > 1) if bounds.with_money else np.array([])
    M, X, R, T, C = range(num, num + 5)
    W = num + 5 + len(shared) + np.arange(np.count_nonzero(options.handed_over))
    num_columns = num + 5 + len(shared) + len(W)
    longest = bounds.longest if math.isfinite(bounds.longest) else 100 * bounds.root
    by_time = SCALE / longest
    by_money = SCALE / bounds.high if bounds.with_money else 0.0
    rows = _Rows()
    _paths(rows, options, picked)
    _limits(rows, options, picked, bounds, shared, num + 5)
    _maxima(rows, options, picked, by_time, (M, X, R))
    _waits(rows, options, picked, by_time, W)
    _seconds(rows, options, picked, by_time, problem.pipeline, (M, X, R, T), W)
    if bounds.with_money:
        _money(rows, options, picked, by_money, bounds, shared, C)
    objective = np.zeros(num_columns)
    objective[T] = 1.0
    if bounds.with_money:
        objective[C] = bounds.price / problem.micro_batches * by_time / by_money
    upper = np.full(num_columns, np.inf)
    upper[:num] = 1.0
    upper[T] = bounds.longest * by_time * (1 + 1e-9)
    lower = np.zeros(num_columns)
    least, largest = bounds.interval.slowest
    lower[M], upper[M] = least * by_time * (1 - 1e-9), largest * by_time * (1 + 1e-9)
    if bounds.with_money:
        lower[C], upper[C] = bounds.low * by_money * (1 - 1e-9), SCALE * (1 + 1e-9)
    whole = np.ones(num_columns)
    whole[num : num + 5] = 0
    whole[W] = 0
    with silent():
        result = milp(
            objective,
            integrality=whole,
            bounds=Box(lower, upper),
            constraints=rows.constraint(num_columns),
            options={"time_limit": max(0.1, seconds), "mip_rel_gap": gap},
        )
    if result.status == 2:  # infeasible
        return MilpAnswer([], math.inf, True)
    bound = 0.0 if result.mip_dual_bound is None else float(result.mip_dual_bound) / by_time
    path: list[int] = []
    if result.x is not None:
        chosen = picked[result.x[:num] > 0.5]
        path = [int(option) for option in chosen[np.argsort(options.first[chosen])]]
    return MilpAnswer(path, bound if math.isfinite(bound) else 0.0, result.status == 0)


@contextmanager
def silent() -> Iterator[None]:
    """Nothing on standard output meanwhile: HiGHS prints lines of its own, whatever its options."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(nowhere)
        os.close(kept)


def _paths(rows: _Rows, options: StageOptions, picked: Ints) -> None:
    """One path over the layers, whose neighbouring stages are on different pools."""
    column, ones = np.arange(len(picked)), np.ones(len(picked))
    first, end, pool = options.first[picked], options.last[picked] + 1, options.pool[picked]
    rows.entries(first, column, ones)
    rows.entries(end, column, -ones)
    balance = np.zeros(options.num_layers + 1)
    balance[0], balance[-1] = 1.0, -1.0
    rows.end_block(balance, balance)
    rows.entries(first * options.num_pools + pool, column, ones)
    rows.entries(end * options.num_pools + pool, column, ones)
    count = (options.num_layers + 1) * options.num_pools
    rows.end_block(np.full(count, -np.inf), np.ones(count))


def _limits(
    rows: _Rows, options: StageOptions, picked: Ints, bounds: Bounds, shared: Ints, first_unit: int
) -> None:
    """Ranks of each pool; where nodes are billed whole, as many units as hold its ranks."""
    pools = bounds.problem.pools
    column, pool = np.arange(len(picked)), options.pool[picked]
    ranks = options.ranks[picked].astype(np.float64)
    rows.entries(pool, column, ranks)
    rows.end_block(np.full(options.num_pools, -np.inf), pools.limit.astype(np.float64))
    for unit, index in enumerate(shared):
        mine = np.flatnonzero(pool == index)
        rows.entries(np.zeros(len(mine), dtype=np.int64), mine, ranks[mine])
        size = -float(pools.ranks_per_unit[index])
        rows.entries(np.zeros(1, dtype=np.int64), np.array([first_unit + unit]), np.array([size]))
        rows.end_block(np.array([-np.inf]), np.zeros(1))


def _maxima(
    rows: _Rows, options: StageOptions, picked: Ints, by_time: float, columns: tuple[int, int, int]
) -> None:
    """M, X and R are at least what the stage of any layer adds to them."""
    length = options.last[picked] - options.first[picked] + 1
    option = np.repeat(np.arange(len(picked)), length)
    begins = np.cumsum(length) - length
    layer = np.arange(length.sum()) - np.repeat(begins - options.first[picked], length)
    every = np.arange(options.num_layers)
    for part, column in zip(options.parts[1:], columns, strict=True):
        value = (part[picked] * by_time)[option]
        some = value > 0
        rows.entries(layer[some], option[some], value[some])
        rows.entries(every, np.full(options.num_layers, column), -np.ones(options.num_layers))
        rows.end_block(np.full(options.num_layers, -np.inf), np.zeros(options.num_layers))


def _waits(rows: _Rows, options: StageOptions, picked: Ints, by_time: float, W: Ints) -> None:
    """W is at least what the faster of two neighbours waits, either way; of a block the least."""
    handed = options.handed_over * by_time
    for one, other in ((options.first, options.last + 1), (options.last + 1, options.first)):
        for at, seconds in ((one, options.way_out), (other, -options.max_way_out)):
            position = at[picked]
            some = np.flatnonzero(handed[position])
            position = position[some]
            rows.entries(position, some, handed[position] * seconds[picked[some]])
        rows.entries(np.flatnonzero(handed), W, -np.ones(len(W)))
        rows.end_block(np.full(len(handed), -np.inf), np.zeros(len(handed)))


def _seconds(
    rows: _Rows,
    options: StageOptions,
    picked: Ints,
    by_time: float,
    pipeline: Pipeline,
    columns: tuple[int, int, int, int],
    W: Ints,
) -> None:
    """Equation 4: the chain, what tables and their rows take alone, and the loop."""
    M, X, R, T = columns
    num, m = len(picked), pipeline.micro_batches
    chain = np.append(
        options.parts.chain_sum[picked] * by_time / m, [1 - 1 / m, *([1 / m] * len(W))]
    )
    members = np.append(np.arange(num), [M, *W])

    def end_row(column: list[int], value: list[float]) -> None:
        rows.entries(np.zeros(len(column), dtype=np.int64), np.array(column), np.array(value))
        rows.end_block(np.array([-np.inf]), np.zeros(1))

    rows.entries(np.zeros(len(members), dtype=np.int64), members, chain)
    end_row([T], [-1.0])
    end_row([X, T], [1.0, -1.0])
    end_row([R, T], [1.0, -1.0])
    rows.entries(np.zeros(len(members), dtype=np.int64), members, chain)
    end_row([X, R, T], [1.0, 2 / m, -1.0 - pipeline.staleness])


def _money(
    rows: _Rows,
    options: StageOptions,
    picked: Ints,
    by_money: float,
    bounds: Bounds,
    shared: Ints,
    C: int,
) -> None:
    """C is what the ranks cost, and the units of pools that bill whole nodes."""
    pools = bounds.problem.pools
    by_rank = ~np.isin(options.pool[picked], shared)
    mine = np.flatnonzero(by_rank)
    units = np.arange(C + 1, C + 1 + len(shared))
    column = np.concatenate([mine, units, [C]])
    prices = pools.price[shared] if len(shared) else np.zeros(0)
    value = np.concatenate([options.per_hour[picked][mine] * by_money, prices * by_money, [-1.0]])
    rows.entries(np.zeros(len(column), dtype=np.int64), column, value)
    rows.end_block(np.zeros(1), np.zeros(1))
