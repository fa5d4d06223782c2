"""From measured seconds at a few numbers of ranks to OCT, α and the other figures of a profile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heterps_hpc.cluster import Cluster, Link, Pool
from heterps_hpc.phases import Phase
from heterps_hpc.profile import PoolTiming, Profile, Timing
from heterps_hpc.profiling.measurement import (
    Measured,
    MeasuredLinks,
    message_seconds_per_byte,
)


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
        timings += [_fit_layer(layer.name, full) for layer in first.layers]
        fixed.append(_fit_pool(cluster.pool(name), full, alone, most))
    return Profile(
        model=first.model,
        model_fingerprint=first.model_fingerprint,
        batch_size=first.batch_size,
        layers=first.layers,
        tensors=first.tensors,
        tables=first.tables,
        timings=tuple(timings),
        pools=tuple(fixed),
        links=tuple(_links(cluster, runs, one_machine)),
        notes=tuple(notes),
    )


def amdahl(counts: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, float | None]:
    """Fit T(k) = O·(1 − α + α/k): O, α, and the relative residual where it is overdetermined.

    Linear least squares in (O·(1 − α), O·α), both kept from going negative.
    """
    k = np.asarray(counts, dtype=float)
    t = np.asarray(seconds, dtype=float)
    if len(set(counts)) < 2:
        return float(t.mean()), 1.0, None
    design = np.stack([np.ones_like(k), 1 / k], axis=1)
    (serial, parallel), *_ = np.linalg.lstsq(design, t, rcond=None)
    if serial < 0:  # better than linear: caches; call it all parallel
        serial, parallel = 0.0, float((t * (1 / k)).sum() / (1 / k**2).sum())
    if parallel < 0:
        serial, parallel = float(t.mean()), 0.0
    total = serial + parallel
    fitted = serial + parallel / k
    residual = float(np.abs(fitted - t).max() / max(t.max(), 1e-12)) if len(k) > 2 else None
    return float(total), float(parallel / total) if total > 0 else 1.0, residual


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
    pool: Pool, runs: Sequence[Measured], alone: Measured | None, full_node_ranks: int
) -> PoolTiming:
    """What a rank pays whatever its layers, what summing gradients costs, and what company does."""
    first = runs[0]
    several = [run for run in runs if run.num_ranks > 1]
    per_byte = latency = None
    if several:
        run = several[0]
        k = run.num_ranks
        weights = sum(layer.weight_bytes_total for layer in run.layers)
        seconds = run.least_phase_seconds.get(Phase.REDUCE, 0.0)
        latency = min(seconds, 0.5e-3) / (2 * (k - 1))
        volume = 2 * (k - 1) / k * weights
        per_byte = max(seconds - 2 * (k - 1) * latency, 0.0) / max(volume, 1.0)
    return PoolTiming(
        pool=pool.name,
        batch_seconds=first.unattributed_seconds,
        reduce_seconds_per_byte=per_byte,
        reduce_latency_seconds=latency,
        message_seconds_per_byte=_message_cost(several),
        overlap=0.0 if pool.device == "cpu" else 1.0,  # a CPU rank packs and sends by itself
        full_node_ranks=full_node_ranks,
        alone=_relief(alone, first),
    )


def _message_cost(runs: Sequence[Measured]) -> float:
    """The median over runs with an exchange; without one it comes from the links' measurement."""
    costs = [message_seconds_per_byte(run.phase_seconds, run.bytes_sent) for run in runs]
    return float(np.median(costs)) if costs else 0.0


def with_links(profile: Profile, found: Sequence[MeasuredLinks]) -> Profile:
    """The profile with the links between pools, and what messages cost where no pool said it."""
    costs: dict[str, list[float]] = {}
    for part in found:
        for pool, seconds in part.message_seconds_per_byte.items():
            costs.setdefault(pool, []).append(seconds)
    pools = tuple(
        pool.model_copy(update={"message_seconds_per_byte": float(np.mean(costs[pool.pool]))})
        if pool.message_seconds_per_byte == 0 and pool.pool in costs
        else pool
        for pool in profile.pools
    )
    links = (*profile.links, *(link for part in found for link in part.links))
    return profile.model_copy(update={"pools": pools, "links": links})


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
