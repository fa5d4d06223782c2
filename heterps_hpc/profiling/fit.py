"""From measured seconds at a few numbers of ranks to OCT, α and the other figures of a profile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from heterps_hpc.cluster import Cluster, Link, Pool
from heterps_hpc.profile import PoolTiming, Profile, TableLoad, Timing
from heterps_hpc.profiling.measurement import Measured, MeasuredLinks

Floats = NDArray[np.float64]


def fit_profile(
    cluster: Cluster, runs: Sequence[Measured], notes: Sequence[str], *, one_machine: bool
) -> Profile:
    """One profile of all pools that were measured."""
    first = runs[0]
    pools = list(dict.fromkeys(run.pool for run in runs))
    timings: list[Timing] = []
    fixed: list[PoolTiming] = []
    for name in pools:
        mine = sorted((r for r in runs if r.pool == name), key=lambda run: run.num_ranks)
        most = max(run.node_ranks for run in mine)
        alone = next((run for run in mine if run.node_ranks == 1 < most), None)
        full = [run for run in mine if run is not alone] or mine
        full = _with_rest([run.as_if_busy(full[0].stretch) for run in full])
        own = [_fit_layer(layer.name, full) for layer in first.layers]
        timings += own
        if one_machine and len(cluster.pools) > 1:
            alone = None  # the ranks of the other pools fill the node
        fixed.append(_fit_pool(cluster.pool(name), full, own, alone, most))
    return Profile(
        model=first.model,
        model_fingerprint=first.model_fingerprint,
        batch_size=first.batch_size,
        window_rows=first.window_rows,
        layers=first.layers,
        tensors=first.tensors,
        tables=mean_loads(runs),
        timings=tuple(timings),
        pools=tuple(fixed),
        links=tuple(_links(cluster, runs, one_machine)),
        notes=tuple(notes),
    )


def _with_rest(runs: Sequence[Measured]) -> list[Measured]:
    """The runs, with what is nobody's in a step given to layers as far as it shrinks with ranks.

    What is left, the same with any number of ranks, is what a rank pays whatever its layers.
    """
    rest = np.array([run.unattributed_seconds for run in runs])
    k = np.array([run.num_ranks for run in runs], dtype=float)
    if len(set(k)) < 2:
        return list(runs)
    _, parallel = least_squares([np.ones_like(k), 1 / k], rest)
    return [
        run.with_computing(run.computing_seconds + min(parallel / run.num_ranks, own))
        for run, own in zip(runs, rest.tolist(), strict=True)
    ]


def mean_loads(runs: Sequence[Measured]) -> tuple[TableLoad, ...]:
    """Every table's share of the work of all tables, in the mean of all runs.

    Shares are multiples of a twentieth of a table's mean, so that noise does not tell alike tables
    apart: such ones change places freely when shards are assigned.
    """
    work = np.array([[table.work for table in run.tables] for run in runs])
    total = work.sum(axis=1, keepdims=True)
    work = np.where(total > 0, work / np.where(total > 0, total, 1.0), 1 / max(work.shape[1], 1))
    shares = np.maximum(np.round(work.mean(axis=0) * work.shape[1] * 20), 1.0) / 20
    return tuple(
        table.model_copy(update={"work": float(share)})
        for table, share in zip(runs[0].tables, shares, strict=True)
    )


def amdahl(counts: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, float | None]:
    """Fit T(k) = O·(1 − α + α/k): O, α, and the relative residual where it is overdetermined.

    Linear least squares in (O·(1 − α), O·α), both kept from going negative.
    """
    k = np.asarray(counts, dtype=float)
    t = np.asarray(seconds, dtype=float)
    if len(set(counts)) < 2:
        return float(t.mean()), 1.0, None
    serial, parallel = least_squares([np.ones_like(k), 1 / k], t)
    total = serial + parallel
    fitted = serial + parallel / k
    residual = float(np.abs(fitted - t).max() / max(t.max(), 1e-12)) if len(k) > 2 else None
    return total, parallel / total if total > 0 else 1.0, residual


def least_squares(columns: Sequence[Floats], seconds: Floats) -> list[float]:
    """What each unit of the columns takes, none of them less than nothing."""
    design = np.stack(columns, axis=1)
    scale = np.maximum(design.max(axis=0), 1e-300)  # bytes and messages differ by orders
    found, _ = nnls(design / scale, seconds)
    return [float(value) for value in found / scale]


def _fit_layer(layer: str, runs: Sequence[Measured]) -> Timing:
    counts = [run.num_ranks for run in runs]
    total, alpha, residual = amdahl(counts, [run.layer_seconds[layer] for run in runs])
    return Timing(
        layer=layer,
        pool=runs[0].pool,
        compute_seconds=max(total, 1e-9),
        compute_parallel=min(max(alpha, 0.0), 1.0),
        residual=residual,
        rank_counts=tuple(counts),
    )


def _fit_pool(
    pool: Pool,
    runs: Sequence[Measured],
    timings: Sequence[Timing],
    alone: Measured | None,
    full_node_ranks: int,
) -> PoolTiming:
    """What a rank pays whatever its layers, what its peers cost it, and what company does."""
    first = runs[0]
    several = [run for run in runs if run.num_ranks > 1]
    latency, per_byte = _reduce_cost(several)
    message, message_byte = _message_cost(several)
    return PoolTiming(
        pool=pool.name,
        batch_seconds=float(np.mean([run.unattributed_seconds for run in runs])),
        reduce_seconds_per_byte=per_byte,
        reduce_latency_seconds=latency,
        message_seconds_per_byte=message_byte,
        message_seconds=message,
        new_row_seconds=float(np.median([run.new_row_seconds for run in runs])),
        read_key_seconds=_read_key_seconds(first),
        overlap=0.0 if pool.device == "cpu" else 1.0,  # a CPU rank packs and sends by itself
        full_node_ranks=full_node_ranks,
        alone=_relief(alone, first),
        stretch=first.stretch,
    )


def _read_key_seconds(run: Measured) -> float:
    """What a key takes to load, of a rank that reads its part of them."""
    keys = sum(layer.keys_per_sample for layer in run.layers) / run.num_ranks
    return run.window_seconds / max(run.window_rows * keys, 1.0)


def _reduce_cost(runs: Sequence[Measured]) -> tuple[float | None, float | None]:
    """Latency and seconds per byte of the ring's 2 (k − 1) steps."""
    if not runs:
        return None, None
    weights = sum(layer.weight_bytes_total for layer in runs[0].layers)
    k = np.array([run.num_ranks for run in runs], dtype=float)
    seconds = np.array([run.reduce_seconds for run in runs])
    if len(set(k)) > 1:
        latency, per_byte = least_squares([2 * (k - 1), 2 * (k - 1) / k * weights], seconds)
        return latency, per_byte
    latency = min(seconds[0], 0.5e-3) / (2 * (k[0] - 1))  # one equation: bytes, if it is long
    volume = 2 * (k[0] - 1) / k[0] * weights
    per_byte = max(seconds[0] - 2 * (k[0] - 1) * latency, 0.0) / max(volume, 1.0)
    return float(latency), float(per_byte)


def _message_cost(runs: Sequence[Measured]) -> tuple[float, float]:
    """Processor time of a message and of a byte: as many came as were sent.

    Nothing where no rank had a peer.
    """
    seconds = np.array([run.handling_seconds for run in runs])
    sizes = np.array([2 * run.bytes_sent for run in runs])
    numbers = np.array([2 * run.messages_sent for run in runs])
    if len(set(numbers)) > 1:
        message, per_byte = least_squares([numbers, sizes], seconds)
        return message, per_byte
    return 0.0, float(np.median(seconds / np.maximum(sizes, 1.0))) if runs else 0.0


def with_links(profile: Profile, found: Sequence[MeasuredLinks]) -> Profile:
    """The profile with the links between pools, and what their ends paid."""
    pools = []
    for pool in profile.pools:
        known = {}
        for name in ("cut_seconds_per_byte", "tables_batch_seconds"):
            values = [
                getattr(part, name)[pool.pool] * _busy(pool, part)
                for part in found
                if pool.pool in getattr(part, name)
            ]
            if values:
                known[name] = float(np.mean(values))
        pools.append(pool.model_copy(update=known))
    links = (*profile.links, *(link for part in found for link in part.links))
    return profile.model_copy(update={"pools": tuple(pools), "links": links})


def _busy(pool: PoolTiming, part: MeasuredLinks) -> float:
    """As `Measured.as_if_busy`: one end of a link may wait for the other."""
    return max(1.0, pool.stretch / part.stretch.get(pool.pool, pool.stretch))


def _relief(alone: Measured | None, full: Measured) -> float:
    """Seconds of one rank alone on its node, relative to one rank of a full node."""
    if alone is None or full.num_ranks != 1 or full.step_seconds <= 0:
        return 1.0
    return min(1.0, alone.step_seconds / full.step_seconds)


def _links(cluster: Cluster, runs: Sequence[Measured], one_machine: bool) -> list[Link]:
    """Measured within a pool; on one machine the way between its pools is the same."""
    found = {run.pool: run.link for run in runs if run.link is not None}
    links = []
    for name, link in found.items():
        for other in (pool.name for pool in cluster.pools):
            if other == name or (one_machine and name <= other):
                links.append(
                    Link(
                        pools=(name, other),
                        latency_seconds=link.latency_seconds,
                        bytes_per_second=link.bytes_per_second,
                        estimated=False,
                    )
                )
    return links
