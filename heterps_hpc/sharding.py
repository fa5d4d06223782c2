"""A plan bound to ranks: ranks numbered by component, the tables' partitions assigned to them."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from heterps_hpc.cluster import Cluster
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Component, Layout, Plan, RankLayout, Shard, Stage
from heterps_hpc.model import Model
from heterps_hpc.row_ranges import split_rows

WORTH_CUTTING = 1.25  # of a rank's fair share: the pass over all keys costs about the rest


def bind_plan(
    stages: tuple[Stage, ...],
    *,
    model: Model,
    cluster: Cluster,
    job: str,
    num_partitions: int,
    table_loads: Mapping[str, float] | None = None,
    plan: Plan | None = None,
) -> Layout:
    """Number the ranks by component and assign the tables' partitions to the ranks."""
    pools = list(dict.fromkeys(stage.pool for stage in stages))
    components: list[Component] = []
    ranks: list[RankLayout] = []
    for index, pool_name in enumerate(pools):
        pool = cluster.pool(pool_name)
        first_rank = len(ranks)
        for number, stage in enumerate(stages):
            if stage.pool == pool_name:
                ranks += _stage_ranks(
                    len(ranks), index, number, stage, model, num_partitions, table_loads or {}
                )
        num_ranks = len(ranks) - first_rank
        if num_ranks > pool.rank_limit:
            raise UserError(
                f"pool {pool_name!r} has {pool.rank_limit} ranks, the plan needs "
                f"{num_ranks}; raise its limit or plan again"
            )
        components.append(
            Component(
                pool=pool_name,
                device=pool.device,
                partition=pool.partition,
                first_rank=first_rank,
                num_ranks=num_ranks,
                cores_per_rank=pool.cores_per_rank,
                ranks_per_node=min(pool.ranks_per_node, num_ranks),
                num_nodes=pool.num_nodes(num_ranks),
            )
        )
    return Layout(
        job=job,
        model=model.name,
        model_fingerprint=model.fingerprint(),
        num_partitions=num_partitions,
        stages=stages,
        components=tuple(components),
        ranks=tuple(ranks),
        plan=plan,
    )


def _stage_ranks(
    first_rank: int,
    component: int,
    number: int,
    stage: Stage,
    model: Model,
    num_partitions: int,
    table_loads: Mapping[str, float],
) -> list[RankLayout]:
    layers = [model.layer(name) for name in stage.layers]
    tables = dict.fromkeys(lookup.table for layer in layers for lookup in layer.lookups)
    loads = {table: table_loads.get(table, 1.0) for table in tables}
    assigned = assign_shards(loads, stage.num_ranks, num_partitions)
    dense = any(not layer.is_embedding for layer in layers)
    return [
        RankLayout(
            rank=first_rank + replica,
            component=component,
            stage=number,
            replica=replica,
            sparse=bool(assigned[replica]),
            dense=dense,
            shards=assigned[replica],
        )
        for replica in range(stage.num_ranks)
    ]


def assign_shards(
    loads: Mapping[str, float], num_ranks: int, num_partitions: int
) -> list[tuple[Shard, ...]]:
    """Assign tables to ranks, heaviest first to the least loaded (LPT).

    A table is cut by partitions only when it alone clearly outweighs a rank's fair share, because
    a cut slot costs every holder a pass over all its keys and the receivers an addition.
    """
    fair = sum(loads.values()) / num_ranks
    slices: list[tuple[float, Shard]] = []
    for table, load in loads.items():
        # the 1e-9 keeps equal shares whole in the face of rounding
        count = ceil(load / fair - 1e-9) if load > WORTH_CUTTING * fair else 1
        count = min(num_partitions, count)
        for first, last in split_rows(num_partitions, count):
            share = load * (last - first) / num_partitions
            shard = Shard(table=table, first_partition=first, last_partition=last)
            slices.append((share, shard))
    order = {table: position for position, table in enumerate(loads)}
    slices.sort(key=lambda part: (-part[0], order[part[1].table], part[1].first_partition))
    weights = [0.0] * num_ranks
    assigned: list[list[Shard]] = [[] for _ in range(num_ranks)]
    equal: dict[float, list[int]] = {}  # ranks of whole tables, by load
    for share, shard in slices:
        rank = min(range(num_ranks), key=lambda r: (weights[r], r))
        weights[rank] += share
        if shard.is_whole(num_partitions):
            equal.setdefault(share, []).append(rank)
        else:
            assigned[rank].append(shard)
    # whole tables of equal load may change places freely: neighbours stay together, as their
    # columns then travel as one block instead of one by one
    taken = {share: iter(sorted(ranks)) for share, ranks in equal.items()}
    for share, shard in slices:
        if shard.is_whole(num_partitions):
            assigned[next(taken[share])].append(shard)
    return [
        tuple(sorted(shards, key=lambda shard: (order[shard.table], shard.first_partition)))
        for shards in assigned
    ]
