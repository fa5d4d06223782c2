"""All plans of a small question, by the equations written out once more in plain Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.plan.problem import OPTIMIZER_COPIES, Problem

PlainStage = tuple[int, int, int, int]  # first, last, pool, ranks


def all_plans(problem: Problem) -> Iterator[tuple[tuple[PlainStage, ...], float, float]]:
    """(stages, seconds per batch, $/hour) of every plan within limits and memory."""
    pools = range(problem.num_pools)
    for placement in itertools.product(pools, repeat=problem.num_layers):
        runs = _runs(placement)
        counts = [range(1, int(problem.pools.limit[run[2]]) + 1) for run in runs]
        for ranks in itertools.product(*counts):
            stages = tuple((*run, k) for run, k in zip(runs, ranks, strict=True))
            used = [sum(s[3] for s in stages if s[2] == pool) for pool in pools]
            if any(used[pool] > problem.pools.limit[pool] for pool in pools):
                continue
            if not all(fits(problem, stage) for stage in stages):
                continue
            per_hour = sum(
                math.ceil(used[p] / problem.pools.ranks_per_unit[p]) * problem.pools.price[p]
                for p in pools
            )
            yield stages, plan_seconds(problem, stages), float(per_hour)


def least_of_all(problem: Problem, longest: float = math.inf) -> tuple[float, float]:
    """Least seconds, and least seconds × $/hour within `longest`, over all plans of few stages of
    many ranks: the stages one by one in plain Python, their combinations by broadcasting."""
    pools, m = problem.pools, problem.micro_batches
    least, least_product = math.inf, math.inf
    for placement in itertools.product(range(problem.num_pools), repeat=problem.num_layers):
        runs = _runs(placement)
        chain_sum, chain_max, tables, rows = np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1)
        before = np.zeros(1)
        used: list[NDArray[np.int64]] = [np.zeros(1, dtype=np.int64) for _ in pools.names]
        for axis, run in enumerate(runs):
            counts = [k for k in range(1, int(pools.limit[run[2]]) + 1) if fits(problem, (*run, k))]
            shape = [1] * len(runs)
            shape[axis] = len(counts)
            parts = np.array([stage_parts(problem, (*run, k)) for k in counts]).reshape(-1, 2)
            once, spread = (column.reshape(shape) for column in parts.T)
            if _in_chain(problem, run):
                cut = np.array([cut_seconds(problem, (*run, k)) for k in counts]).reshape(shape)
                chain_sum = chain_sum + once + (spread + cut) / m
                chain_max = np.maximum(chain_max, np.maximum(spread, cut))
            else:
                tables = np.maximum(tables, once + spread)
            own = np.array([rows_seconds(problem, (*run, k)) for k in counts]).reshape(shape)
            rows = np.maximum(rows, own)
            used[run[2]] = used[run[2]] + np.array(counts, dtype=np.int64).reshape(shape)
            out = np.array([way_out(problem, (*run, k)) for k in counts]).reshape(shape)
            if axis:
                chain_sum = chain_sum + _handed_over(problem, run[0]) * np.abs(out - before) / m
            before = out
        chain = chain_sum + (1 - 1 / m) * chain_max
        loop = (chain + tables + 2 / m * rows) / (problem.staleness + 1)
        seconds = np.maximum(np.maximum(chain, tables), np.maximum(rows, loop))
        for pool in range(problem.num_pools):
            seconds = np.where(used[pool] <= pools.limit[pool], seconds, np.inf)
        units = [-(-used[p] // pools.ranks_per_unit[p]) for p in range(problem.num_pools)]
        per_hour = sum(units[p] * pools.price[p] for p in range(problem.num_pools))
        if seconds.size:
            least = min(least, float(seconds.min()))
            in_time = np.where(seconds <= longest * (1 + 1e-12), seconds * per_hour, np.inf)
            least_product = min(least_product, float(in_time.min()))
    return least, least_product


def _runs(placement: tuple[int, ...]) -> list[tuple[int, int, int]]:
    runs: list[tuple[int, int, int]] = []
    for pool, group in itertools.groupby(range(len(placement)), key=placement.__getitem__):
        members = list(group)
        runs.append((members[0], members[-1], pool))
    return runs


def _in_chain(problem: Problem, run: tuple[int, ...]) -> bool:
    """Whether the pipeline drains through a stage: all but those of tables alone."""
    return not all(problem.layers.is_embedding[run[0] : run[1] + 1])


def plan_seconds(problem: Problem, stages: tuple[PlainStage, ...]) -> float:
    """Seconds per batch, equation 4."""
    chain, tables = [(0.0, 0.0, 0.0)], [0.0]
    for stage in stages:
        if _in_chain(problem, stage):
            chain.append((*stage_parts(problem, stage), cut_seconds(problem, stage)))
        else:
            tables.append(sum(stage_parts(problem, stage)))
    m = problem.micro_batches
    drained = sum(once + (spread + cut) / m for once, spread, cut in chain)
    drained += (1 - 1 / m) * max(max(spread, cut) for _, spread, cut in chain)
    for one, other in itertools.pairwise(stages):
        waits = abs(way_out(problem, one) - way_out(problem, other))
        drained += _handed_over(problem, other[0]) * waits / m
    rows = max(rows_seconds(problem, stage) for stage in stages)
    loop = max(tables) + 2 * rows / m + drained
    return max(drained, max(tables), rows, loop / (problem.staleness + 1))


def way_out(problem: Problem, stage: PlainStage) -> float:
    """Seconds per byte over the links of all ranks of a stage."""
    return float(problem.pools.uplink_seconds_per_byte[stage[2]] / stage[3])


def _handed_over(problem: Problem, layer: int) -> float:
    """Bytes of activations that a dense layer gets from the dense layer right before it."""
    embeds = problem.layers.is_embedding
    return sum(
        size
        for writer, readers, size in problem.layers.tensors
        if writer == layer - 1 and layer in readers and not embeds[writer] and not embeds[layer]
    )


def rows_seconds(problem: Problem, stage: PlainStage) -> float:
    """One way of the pooled rows that cross the ends of a stage."""
    return _crossing(problem, stage, rows=True) * way_out(problem, stage)


def cut_seconds(problem: Problem, stage: PlainStage) -> float:
    """One way of the activations that cross the ends of a stage."""
    return _crossing(problem, stage, rows=False) * way_out(problem, stage)


def _crossing(problem: Problem, stage: PlainStage, *, rows: bool) -> float:
    first, last, _, _ = stage
    size = 0.0
    for writer, readers, per_batch in problem.layers.tensors:
        inside = first <= writer <= last
        reads = any(first <= r <= last for r in readers)
        leaves = inside and any(r > last for r in readers)
        crosses = leaves or (writer < first and reads)
        if problem.layers.is_embedding[writer] == rows and crosses:
            size += per_batch
    return float(size)


def stage_seconds(problem: Problem, stage: PlainStage) -> float:
    """ET of one stage, and its link after it."""
    return sum(stage_parts(problem, stage)) + cut_seconds(problem, stage)


def stage_parts(problem: Problem, stage: PlainStage) -> tuple[float, float]:
    """What one stage does once per batch, and what is spread over micro-batches: equations 1 to
    3."""
    first, last, t, k = stage
    layers, pools = problem.layers, problem.pools
    ct, dt, tables, reduce = 0.0, 0.0, 0.0, 0.0
    weights = 0.0
    for i in range(first, last + 1):
        own = layers.OCT[i, t] * (1 - layers.alpha[i, t] + layers.alpha[i, t] / k)
        if layers.is_embedding[i]:
            tables += own
        else:
            ct += own
        dt += layers.ODT[i, t] * (1 - layers.beta[i, t] + layers.beta[i, t] / k)
        weights += layers.weight_bytes[i]
    own_fixed = pools.fixed_seconds if _in_chain(problem, stage) else pools.tables_fixed_seconds
    ct += own_fixed[t]
    if k < pools.full_node_ranks[t]:
        empty = (pools.full_node_ranks[t] - k) / (pools.full_node_ranks[t] - 1)
        ct *= 1 - (1 - pools.alone[t]) * empty
        tables *= 1 - (1 - pools.alone[t]) * empty
    crosses = exchanges = waits = False
    for writer, readers, size in layers.tensors:
        inside = first <= writer <= last
        reads = any(first <= r <= last for r in readers)
        if (inside and any(r > last for r in readers)) or (writer < first and reads):
            crosses = True
            waits |= problem.staleness == 0 or not layers.is_embedding[writer]
            ct += 2 * size * pools.cut_seconds_per_byte[t] / k
        if inside and reads and layers.is_embedding[writer]:
            exchanges = True
            moved = size * (k - 1) / k**2
            ct += 4 * moved * pools.message_seconds_per_byte[t]
            dt += (1 if problem.staleness else 2) * moved * pools.inner_seconds_per_byte[t]
    handling = 2 * problem.micro_batches * pools.message_seconds[t]
    ct += 2 * problem.micro_batches * pools.cut_message_seconds[t] * crosses
    ct += 2 * handling * (k - 1) * exchanges
    if waits:
        dt += 2 * problem.micro_batches * pools.uplink_latency[t]
    if weights:
        reduce += 2 * weights * pools.reduce_seconds_per_byte[t] * (k - 1) / k
        reduce += 2 * (k - 1) * pools.reduce_latency[t]
    ct, dt = ct + tables, dt + reduce
    once = (1 - pools.overlap[t]) * (tables + reduce)
    return float(once), float(max(ct, dt) + (1 - pools.overlap[t]) * min(ct, dt) - once)


def fits(problem: Problem, stage: PlainStage) -> bool:
    """Whether a rank's memory holds its part of the stage (CPU pools)."""
    first, last, t, k = stage
    own = slice(first, last + 1)
    tables = min(problem.layers.table_bytes[own].sum() / k, problem.hot_bytes)
    dense = OPTIMIZER_COPIES * problem.layers.weight_bytes[own].sum()
    dense += 2 * problem.layers.activation_bytes[own].sum() / k / problem.micro_batches
    return bool((1 + problem.snapshot_share) * tables + dense <= problem.pools.memory[t])
