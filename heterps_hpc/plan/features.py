"""What the learned scheduler reads of a question: one row of figures per (layer, pool).

Every figure is relative, to the seconds that a batch may take or to the best pool of the layer, so
that questions of any size look alike; none depends on the order of the pools. Some are what the
cost model itself says of the layer, and of the few after it, as a stage of its own, so that
whatever the model counts is among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.problem import OPTIMIZER_COPIES, Floats, Ints, Problem

WINDOWS = (2, 4, 8)  # layers to look ahead, as if they stayed together
STAGES = (1, 3, 6)  # layers of the stages that the cost model is asked about,
NUM_COUNTS = 8  # with so many numbers of ranks, from one to the pool's limit
NUM_FEATURES = 55


@dataclass(frozen=True, eq=False)
class Features:
    """`pairs` is [L, P, NUM_FEATURES]; `load` [L, P] the part of a pool that a layer would fill."""

    pairs: Floats
    load: Floats


def features_of(table: StageTable) -> Features:
    """Time, money, limits, memory and links of every (layer, pool)."""
    problem = table.problem
    layers, pools, m = problem.layers, problem.pools, problem.micro_batches
    seconds = layers.OCT + layers.ODT
    serial = layers.OCT * (1 - layers.alpha) + layers.ODT * (1 - layers.beta)
    tau = problem.longest_batch
    if not np.isfinite(tau):
        tau = float(seconds.sum(axis=0).min())
    rate = pools.price / pools.ranks_per_unit
    money = seconds * rate
    load = seconds / (tau * pools.limit)
    cut = _cut_bytes(problem)[:, None] * pools.uplink_seconds_per_byte
    table_bytes = layers.table_bytes[:, None] / (pools.memory * pools.limit)
    dense_bytes = OPTIMIZER_COPIES * layers.weight_bytes[:, None] / pools.memory
    reduce = 2 * layers.weight_bytes[:, None] * pools.reduce_seconds_per_byte
    fixed = pools.fixed_seconds + 2 * m * pools.uplink_latency
    columns = [
        _log(seconds / tau),
        _above_least(seconds),
        _above_least(money),
        _above_least(money + rate * (cut + fixed)),
        _log(load),
        _log1p(serial / tau),
        _log1p(cut / tau),
        _above_least(cut),
        _log1p(table_bytes),
        _log1p(dense_bytes),
        _log1p(reduce / tau),
    ]
    for window in WINDOWS:
        ahead = [_window(values, window) for values in (seconds, money, load)]
        columns += [_above_least(ahead[0]), _above_least(ahead[1]), _log(ahead[2])]
    for values in (seconds, money):
        total = np.cumsum(values[::-1], axis=0)[::-1]
        columns += [_above_least(total), _above_least(np.cumsum(values, axis=0))]
    for length in STAGES:
        columns += _stage_columns(table, length, tau)
    by_pool = [
        _log1p(fixed / tau),
        np.log(rate) - np.log(rate).mean(),
        np.log(pools.ranks_per_unit) / 4,
        np.log(pools.limit) / 8,
        pools.is_cpu.astype(np.float64),
    ]
    least = money.min(axis=1)
    place = np.linspace(0, 1, problem.num_layers)
    by_layer = [
        layers.is_embedding.astype(np.float64),
        place,
        _log(least / least.mean()),
        _log(seconds.min(axis=1) / tau),
        np.full(len(place), float(problem.floor > 0)),
        np.full(len(place), np.log(m) / 4),
        np.full(len(place), float(problem.staleness > 0)),
        np.full(len(place), np.log(problem.num_pools) / 4),
    ]
    shape = seconds.shape
    columns += [np.broadcast_to(values, shape) for values in by_pool]
    columns += [np.broadcast_to(values[:, None], shape) for values in by_layer]
    return Features(np.stack(columns, axis=2), load)


def _stage_columns(table: StageTable, length: int, tau: float) -> list[Floats]:
    """What the cost model says of stages that start at each layer, by pool."""
    problem = table.problem
    first = np.arange(problem.num_layers)
    last = np.minimum(first + length, problem.num_layers) - 1
    pair = table.pair_index[first, last][:, None, None]
    pool = np.arange(problem.num_pools)[:, None]
    counts = _counts(problem.pools.limit)
    fits = table.fits(pair, pool, counts)
    seconds = table.stage_seconds(pair, pool, counts)
    money = seconds * table.rate(pool, counts)
    one_way = table.rows_seconds(pair, pool, counts)[:, :, -1]
    fast = fits & (seconds <= tau)
    fewest = np.where(fast, counts, 2 * counts[:, -1:]).min(axis=2)  # ranks that are fast enough
    return [
        _log(seconds[:, :, 0] / tau),
        _log(seconds.min(axis=2) / tau),
        _above_least(money.min(axis=2)),
        _log(fewest / problem.pools.limit),
        _above_least(np.where(fast, money, 10 * money.max(axis=2, keepdims=True)).min(axis=2)),
        _log1p(one_way / tau) + (~fits.any(axis=2)).astype(np.float64),
    ]


def _counts(limit: Ints) -> Ints:
    """Numbers of ranks of each pool from 1 to its limit, [P, NUM_COUNTS], evenly by ratio."""
    steps = np.linspace(0, 1, NUM_COUNTS)
    return np.asarray(np.rint(limit[:, None] ** steps), dtype=np.int64)


def _cut_bytes(problem: Problem) -> Floats:
    """Bytes per batch, both ways, that cross a cut just before each layer."""
    cut = np.zeros(problem.num_layers)
    for writer, readers, size in problem.layers.tensors:
        cut[writer + 1 : max(readers, default=writer) + 1] += 2 * size
    return cut


def _window(values: Floats, length: int) -> Floats:
    """Sums over each layer and those after it, `length` at most."""
    prefix = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    end = np.minimum(np.arange(len(values)) + length, len(values))
    return np.asarray(prefix[end] - prefix[:-1])


def _above_least(values: Floats) -> Floats:
    """Log of the ratio to the layer's best pool."""
    return np.asarray(_log(values) - _log(values).min(axis=1, keepdims=True))


def _log(values: Floats) -> Floats:
    return np.asarray(np.clip(np.log(np.maximum(values, 1e-12)), -12, 12) / 3)


def _log1p(values: Floats) -> Floats:
    return np.asarray(np.log1p(np.minimum(values * 10, 1e6)) / 3)
