"""Checks of a layout as a whole, when it is loaded and before anything runs.

People edit layouts by hand. A layout that is wrong in itself would not crash: ranks would hold a
partition twice, or none, and learn something else. Each check raises ValueError that names the
rank, the stage or the table; the value types turn it into an error that names the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heterps_hpc.errors import UserError
from heterps_hpc.validation import nearest

if TYPE_CHECKING:
    from heterps_hpc.cluster import Cluster
    from heterps_hpc.config import Job
    from heterps_hpc.layout import Layout, RankLayout
    from heterps_hpc.model import Model


def check_layout(layout: Layout) -> None:
    """Everything that a layout can get wrong by itself."""
    _check_ranks(layout)
    _check_components(layout)
    _check_stages(layout)
    _check_shards(layout)
    _check_plan(layout)


def _check_ranks(layout: Layout) -> None:
    if [entry.rank for entry in layout.ranks] != list(range(len(layout.ranks))):
        raise ValueError("ranks must be listed in order, 0 to n-1, each once")
    for entry in layout.ranks:
        for what, number, count in (
            ("component", entry.component, len(layout.components)),
            ("stage", entry.stage, len(layout.stages)),
        ):
            if number >= count:
                raise ValueError(
                    f"rank {entry.rank} is in {what} {number}, but the layout has {count}, "
                    "numbered from 0"
                )


def _check_components(layout: Layout) -> None:
    first = 0
    for number, component in enumerate(layout.components):
        if component.first_rank != first:
            raise ValueError(
                f"components cover ranks without gaps, in order: component {number} begins at rank "
                f"{component.first_rank} instead of {first}"
            )
        first += component.num_ranks
    if first != len(layout.ranks):
        raise ValueError(f"components cover {first} ranks, but the layout has {len(layout.ranks)}")
    for number, component in enumerate(layout.components):
        if component.num_ranks > component.num_nodes * component.ranks_per_node:
            raise ValueError(
                f"component {number} puts {component.num_ranks} ranks on {component.num_nodes} "
                f"nodes of {component.ranks_per_node}; more nodes, or more ranks per node"
            )
        if component.num_nodes > component.num_ranks:
            raise ValueError(
                f"component {number} has {component.num_nodes} nodes for {component.num_ranks} "
                "ranks; each node needs one at least"
            )
    pools = [component.pool for component in layout.components]
    if len(set(pools)) != len(pools):
        raise ValueError("a pool has two components; exactly one per pool is needed")
    for entry in layout.ranks:
        if entry.rank not in layout.components[entry.component].ranks:
            raise ValueError(
                f"rank {entry.rank} is not among the ranks of its component {entry.component}"
            )


def _check_stages(layout: Layout) -> None:
    placed: dict[str, int] = {}
    for index, stage in enumerate(layout.stages):
        for layer in stage.layers:
            if layer in placed:
                raise ValueError(
                    f"layer {layer!r} is in stage {placed[layer]} and in stage {index}"
                )
            placed[layer] = index
        members = [layout.ranks[rank] for rank in layout.stage_ranks(index)]
        if len(members) != stage.num_ranks:
            raise ValueError(
                f"stage {index} needs {stage.num_ranks} ranks, the layout lists {len(members)}"
            )
        if [entry.replica for entry in members] != list(range(len(members))):
            raise ValueError(
                f"the replicas of stage {index} are {[entry.replica for entry in members]}; they "
                f"must be 0 to {len(members) - 1}, each once"
            )
        for entry in members:
            pool = layout.components[entry.component].pool
            if pool != stage.pool:
                raise ValueError(
                    f"rank {entry.rank} of stage {index} is in the component of pool {pool!r}, "
                    f"its stage in {stage.pool!r}"
                )
        if len({entry.dense for entry in members}) > 1:
            raise ValueError(f"some ranks of stage {index} are dense and some are not")


def _check_shards(layout: Layout) -> None:
    held: dict[str, dict[int, list[tuple[int, int, int]]]] = {}
    for entry in layout.ranks:
        if entry.sparse != bool(entry.shards):
            raise ValueError(
                f"rank {entry.rank} has sparse={entry.sparse} and {len(entry.shards)} shards; a "
                "rank is sparse if it holds shards"
            )
        for shard in entry.shards:
            first, last = shard.first_partition, shard.last_partition
            if not first < last <= layout.num_partitions:
                raise ValueError(
                    f"rank {entry.rank} holds partitions {first} to {last} of table "
                    f"{shard.table!r}; they must rise and stay within {layout.num_partitions}"
                )
            stages = held.setdefault(shard.table, {})
            stages.setdefault(entry.stage, []).append((first, last, entry.rank))
    for table, stages in held.items():
        if len(stages) > 1:
            raise ValueError(f"table {table!r} is held by ranks of stages {sorted(stages)}")
        _check_cover(table, next(iter(stages.values())), layout.num_partitions)


def _check_cover(table: str, shards: list[tuple[int, int, int]], num_partitions: int) -> None:
    """Every partition held exactly once."""
    end = 0
    for first, last, rank in sorted(shards):
        if first != end:
            what = "by no rank" if first > end else f"twice, by rank {rank} too"
            raise ValueError(
                f"partition {min(first, end)} of table {table!r} is held {what}; every partition "
                "is held by exactly one rank"
            )
        end = last
    if end != num_partitions:
        raise ValueError(
            f"partitions {end} to {num_partitions - 1} of table {table!r} are held by no rank; "
            "every partition is held by exactly one rank"
        )


def _check_plan(layout: Layout) -> None:
    if layout.plan is None:
        return
    count, estimate = len(layout.plan.stages), layout.plan.estimate
    if len(estimate.stages) != count or not 0 <= estimate.binding_stage < count:
        raise ValueError(
            f"the plan has {count} stages, but its estimate {len(estimate.stages)}, of which stage "
            f"{estimate.binding_stage} binds; drop `plan`, or plan again"
        )


def check_tables(layout: Layout, model: Model) -> None:
    """UserError unless exactly the model's tables are held, each in the stage of its layer."""
    stage_of = {
        lookup.table: layout.stage_of_layer(layer.name)
        for layer in model.layers
        for lookup in layer.lookups
    }
    held: dict[str, RankLayout] = {
        shard.table: entry for entry in layout.ranks for shard in entry.shards
    }
    for table, entry in held.items():
        if table not in stage_of:
            raise UserError(
                f"layout: rank {entry.rank} holds table {table!r}, which the model does not have; "
                f"{nearest(table, list(stage_of))}"
            )
        if entry.stage != stage_of[table]:
            raise UserError(
                f"layout: rank {entry.rank} of stage {entry.stage} holds table {table!r}, which "
                f"stage {stage_of[table]} reads; plan again"
            )
    for table in stage_of.keys() - held.keys():
        raise UserError(f"layout: no rank holds table {table!r}; plan again")
    for entry in layout.ranks:
        layers = [model.layer(name) for name in layout.stages[entry.stage].layers]
        dense = any(not layer.is_embedding for layer in layers)
        if entry.dense != dense:
            raise UserError(
                f"layout: rank {entry.rank} has dense={entry.dense}, but its stage "
                f"{entry.stage} has {'' if dense else 'no '}dense layers; plan again"
            )


def check_job(layout: Layout, job: Job) -> None:
    """UserError unless tables are cut as the job says: keys beyond would be held by no rank."""
    count = job.train.tables.num_partitions
    if layout.num_partitions != count:
        raise UserError(
            f"layout: {layout.num_partitions} partitions, train.tables.num_partitions of the job "
            f"is {count}; plan again"
        )


def check_cluster(layout: Layout, cluster: Cluster) -> None:
    """UserError unless the cluster has the layout's pools, with that many ranks."""
    for component in layout.components:
        pool = cluster.pool(component.pool)
        if component.num_ranks > pool.rank_limit:
            raise UserError(
                f"layout: {component.num_ranks} ranks on pool {pool.name!r}, whose limit is "
                f"{pool.rank_limit}; raise the limit in the cluster file, or plan again"
            )
        cores = component.cores_per_rank * component.ranks_per_node
        if cores > pool.cores_per_node:
            raise UserError(
                f"layout: {cores} cores on each node of pool {pool.name!r}, which have "
                f"{pool.cores_per_node}; plan again"
            )
        if component.device != pool.device:
            raise UserError(
                f"layout: device {component.device} on pool {pool.name!r}, which has "
                f"{pool.device}; plan again"
            )
