"""Random planning questions, and a plain enumeration of their plans to compare with."""

from __future__ import annotations

import itertools

import numpy as np

from heterps_hpc.cluster import Cluster, Link, Pool
from heterps_hpc.plan.problem import Problem, make_problem
from heterps_hpc.profile import (
    LayerInfo,
    PoolTiming,
    Profile,
    TableLoad,
    TensorInfo,
    Timing,
)


def random_profile(
    rng: np.random.Generator, num_layers: int, pools: list[str], batch_size: int = 100
) -> Profile:
    """Layers with one embedding first, perhaps more later, and a chain of tensors with skips."""
    layers = _random_layers(rng, num_layers)
    names = [layer.name for layer in layers]
    # in this order: the questions of known seeds depend on it
    tensors = _random_tensors(rng, names)
    timings = _random_timings(rng, names, pools)
    return Profile(
        model="random",
        model_fingerprint="0" * 16,
        batch_size=batch_size,
        layers=layers,
        tensors=tensors,
        tables=(TableLoad(name="t", work=1.0),),
        timings=timings,
        pools=_random_pool_timings(rng, pools),
    )


def _random_layers(rng: np.random.Generator, num_layers: int) -> tuple[LayerInfo, ...]:
    embeds = [True] + [bool(rng.random() < 0.2) for _ in range(num_layers - 1)]
    return tuple(
        LayerInfo(
            name=f"layer{place}",
            kind="embedding" if embed else "fc",
            is_embedding=embed,
            output_bytes=64.0,
            weight_bytes_total=0.0 if embed else float(rng.uniform(1e3, 1e6)),
            table_bytes_total=float(rng.uniform(1e6, 1e9)) if embed else 0.0,
            activation_bytes=float(rng.uniform(1, 1e3)),
        )
        for place, embed in enumerate(embeds)
    )


def _random_tensors(rng: np.random.Generator, names: list[str]) -> tuple[TensorInfo, ...]:
    """Each layer's output goes to the next one, sometimes to one further on as well."""
    num_layers = len(names)
    tensors = []
    for i in range(num_layers - 1):
        readers = {i + 1}
        if i + 2 < num_layers and rng.random() < 0.3:
            readers.add(int(rng.integers(i + 2, num_layers)))
        tensors.append(
            TensorInfo(
                name=f"t{i}",
                writer=names[i],
                readers=tuple(names[r] for r in sorted(readers)),
                bytes_per_sample=float(rng.uniform(4, 4e4)),
            )
        )
    return tuple(tensors)


def _random_timings(
    rng: np.random.Generator, names: list[str], pools: list[str]
) -> tuple[Timing, ...]:
    return tuple(
        Timing(
            layer=name,
            pool=pool,
            compute_seconds=float(rng.lognormal(-4, 1)),
            compute_parallel=float(rng.uniform(0.5, 1.0)),
            move_seconds=float(rng.lognormal(-6, 1)),
            move_parallel=float(rng.uniform(0.5, 1.0)),
        )
        for name in names
        for pool in pools
    )


def _random_pool_timings(rng: np.random.Generator, pools: list[str]) -> tuple[PoolTiming, ...]:
    return tuple(
        PoolTiming(
            pool=pool,
            batch_seconds=float(rng.uniform(0, 1e-3)),
            overlap=float(rng.choice([0.0, 0.5, 1.0])),
            full_node_ranks=int(rng.integers(1, 5)),
            alone=float(rng.uniform(0.6, 1.0)),
            message_seconds_per_byte=float(rng.uniform(0, 1e-9)),
        )
        for pool in pools
    )


def with_peers(rng: np.random.Generator, profile: Profile) -> Profile:
    """The profile with what a rank's peers cost it."""
    pools = tuple(
        pool.model_copy(
            update={
                "message_seconds": float(rng.uniform(0, 1e-4)),
                "cut_seconds_per_byte": None if rng.random() < 0.5 else float(rng.uniform(0, 1e-8)),
                "tables_batch_seconds": None if rng.random() < 0.5 else float(rng.uniform(0, 1e-3)),
                "read_key_seconds": float(rng.uniform(0, 1e-6)),
            }
        )
        for pool in profile.pools
    )
    layers = tuple(
        layer.model_copy(update={"keys_per_sample": float(rng.integers(1, 20))})
        if layer.is_embedding
        else layer
        for layer in profile.layers
    )
    return profile.model_copy(update={"pools": pools, "layers": layers, "window_rows": 300_000})


def random_cluster(rng: np.random.Generator, num_pools: int, max_ranks: int) -> Cluster:
    """Pools of different prices, some billed by node."""
    pools = []
    for i in range(num_pools):
        cores = int(rng.integers(1, 4))
        pools.append(
            Pool(
                name=f"pool{i}",
                price_per_hour=float(rng.lognormal(0, 1)),
                billing=str(rng.choice(["rank", "rank", "node"])),  # type: ignore[arg-type]
                max_ranks=int(rng.integers(1, max_ranks + 1)),
                cores_per_node=cores,
                memory_per_node_gb=cores * float(rng.choice([0.6, 1.0, 10.0])),
            )
        )
    links = [
        Link(
            pools=(a.name, b.name),
            latency_seconds=float(rng.uniform(1e-6, 1e-4)),
            bytes_per_second=float(rng.uniform(1e8, 1e10)),
        )
        for a, b in itertools.combinations_with_replacement(pools, 2)
    ]
    return Cluster(pools=tuple(pools), links=tuple(links))


def random_problem(
    seed: int, *, num_layers: int, num_pools: int, max_ranks: int, floor: float = 0.0
) -> Problem:
    """A question made of a random profile and a random cluster."""
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng, num_pools, max_ranks)
    profile = random_profile(rng, num_layers, [pool.name for pool in cluster.pools])
    if seed % 2:
        profile = with_peers(np.random.default_rng(seed), profile)
    return make_problem(
        profile,
        cluster,
        batch_size=int(rng.choice([50, 100, 200])),
        num_samples=1e6,
        micro_batches=int(rng.choice([1, 1, 2, 4, 1000])),
        staleness=int(rng.integers(0, 2)),
        floor=floor,
        hot_bytes=None if rng.random() < 0.7 else 3e8,
        snapshot_share=float(rng.choice([0.0, 0.0, 1.0])),
    )
