"""Plan and layout: what the scheduler decided, and that decision bound to ranks.

The layout is the waist of the package: planning writes it, launching and training only read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from heterps_hpc.cluster import Cluster, DeviceKind
from heterps_hpc.errors import UserError
from heterps_hpc.model import Model
from heterps_hpc.row_ranges import split_rows
from heterps_hpc.validation import Value

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]


class Stage(Value):
    """A maximal run of consecutive layers on one pool, by so many replicas."""

    pool: str
    layers: Annotated[tuple[str, ...], Field(min_length=1)]
    num_ranks: Positive


class StageEstimate(Value):
    """Predicted seconds of one batch in one stage (CT, DT and ET of the paper)."""

    compute_seconds: float
    move_seconds: float
    seconds: float


class Estimate(Value):
    """What a plan is predicted to do and to cost."""

    samples_per_second: float
    seconds_per_batch: float
    binding_stage: int
    stages: tuple[StageEstimate, ...]
    hours: float
    money_per_hour: float
    money: float
    from_data_sheet: bool = False  # some pool was described, not measured


class Plan(Value):
    """Stages × replicas with their estimate; `gap` says how far the optimum can be."""

    stages: tuple[Stage, ...]
    estimate: Estimate
    scheduler: str
    optimum_money: float | None = None
    gap: float | None = None
    gap_is_bound: bool = False  # the exact solver ran out of time: optimum_money is a lower bound

    @property
    def placement(self) -> dict[str, str]:
        """The pool of every layer."""
        return {layer: stage.pool for stage in self.stages for layer in stage.layers}


class Component(Value):
    """A contiguous block of ranks on one pool = one part of a heterogeneous job."""

    pool: str
    device: DeviceKind
    partition: str | None
    first_rank: NotNegative
    num_ranks: Positive
    cores_per_rank: Positive
    ranks_per_node: Positive
    num_nodes: Positive

    @property
    def ranks(self) -> range:
        """The ranks of this component."""
        return range(self.first_rank, self.first_rank + self.num_ranks)


class Shard(Value):
    """The partitions [first, last) of one table."""

    table: str
    first_partition: NotNegative
    last_partition: Positive

    def is_whole(self, num_partitions: int) -> bool:
        """Whether this is all of the table."""
        return self.first_partition == 0 and self.last_partition == num_partitions


class RankLayout(Value):
    """Where one rank is and what it does."""

    rank: NotNegative
    component: NotNegative
    stage: NotNegative
    replica: NotNegative
    sparse: bool
    dense: bool
    shards: tuple[Shard, ...] = ()

    @property
    def role(self) -> str:
        """`sparse`, `dense` or `sparse+dense`, for people."""
        roles = [name for name, has in (("sparse", self.sparse), ("dense", self.dense)) if has]
        return "+".join(roles) or "idle"

    def partitions(self) -> dict[str, list[int]]:
        """The partitions of every table that this rank holds (a table may have two shards)."""
        held: dict[str, list[int]] = {}
        for shard in self.shards:
            held.setdefault(shard.table, []).extend(
                range(shard.first_partition, shard.last_partition)
            )
        return held


class Layout(Value):
    """A plan bound to ranks."""

    model_config = ConfigDict(protected_namespaces=())

    version: Literal[1] = 1
    job: str
    model: str
    model_fingerprint: str
    num_partitions: Positive
    stages: tuple[Stage, ...]
    components: tuple[Component, ...]
    ranks: tuple[RankLayout, ...]
    plan: Plan | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if [entry.rank for entry in self.ranks] != list(range(len(self.ranks))):
            raise ValueError("ranks must be listed in order, 0 to n-1, each once")
        covered = [rank for component in self.components for rank in component.ranks]
        if covered != list(range(len(self.ranks))):
            raise ValueError(
                f"components cover ranks {covered}, but the layout has {len(self.ranks)} ranks"
            )
        pools = [component.pool for component in self.components]
        if len(set(pools)) != len(pools):
            raise ValueError("a pool has two components; exactly one per pool is needed")
        for index, stage in enumerate(self.stages):
            members = self.stage_ranks(index)
            if len(members) != stage.num_ranks:
                raise ValueError(
                    f"stage {index} needs {stage.num_ranks} ranks, the layout lists {len(members)}"
                )
            for entry in (self.ranks[rank] for rank in members):
                if pools[entry.component] != stage.pool:
                    raise ValueError(
                        f"rank {entry.rank} of stage {index} is in the component of pool "
                        f"{pools[entry.component]!r}, its stage in {stage.pool!r}"
                    )
        return self

    @property
    def num_ranks(self) -> int:
        """Ranks of the whole job."""
        return len(self.ranks)

    def stage_ranks(self, stage: int) -> list[int]:
        """World ranks of a stage, by replica."""
        members = [entry for entry in self.ranks if entry.stage == stage]
        return [entry.rank for entry in sorted(members, key=lambda entry: entry.replica)]

    def stage_of_layer(self, layer: str) -> int:
        """Index of the stage that holds a layer."""
        return next(i for i, stage in enumerate(self.stages) if layer in stage.layers)

    def check_model(self, model: Model) -> None:
        """Refuse a layout that was made for another model."""
        placed = [layer for stage in self.stages for layer in stage.layers]
        expected = [layer.name for layer in model.layers]
        if placed != expected or self.model_fingerprint != model.fingerprint():
            raise UserError(
                f"the layout was made for model {self.model!r} ({self.model_fingerprint}, "
                f"{len(placed)} layers), this job has {model.name!r} ({model.fingerprint()}, "
                f"{len(expected)} layers); plan again"
            )

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a layout file."""
        return super().load(path)


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
    """Number the ranks by component and deal the tables' partitions to the ranks."""
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
                f"pool {pool_name!r} has room for {pool.rank_limit} ranks, the plan wants "
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
    dealt = deal_shards(loads, stage.num_ranks, num_partitions)
    dense = any(not layer.is_embedding for layer in layers)
    return [
        RankLayout(
            rank=first_rank + replica,
            component=component,
            stage=number,
            replica=replica,
            sparse=bool(dealt[replica]),
            dense=dense,
            shards=dealt[replica],
        )
        for replica in range(stage.num_ranks)
    ]


def deal_shards(
    loads: Mapping[str, float], num_ranks: int, num_partitions: int
) -> list[tuple[Shard, ...]]:
    """Deal tables to ranks, heaviest first to the least loaded (LPT).

    A table is cut by partitions only when it alone outweighs a rank's fair share, because a cut
    slot costs every holder a pass over all its keys and the receivers an addition.
    """
    fair = sum(loads.values()) / num_ranks
    pieces: list[tuple[float, Shard]] = []
    for table, load in loads.items():
        # the 1e-9 keeps equal shares whole in the face of rounding
        count = min(num_partitions, max(1, -int(-(load / fair - 1e-9) // 1))) if fair > 0 else 1
        for first, last in split_rows(num_partitions, count):
            share = load * (last - first) / num_partitions
            shard = Shard(table=table, first_partition=first, last_partition=last)
            pieces.append((share, shard))
    order = {table: position for position, table in enumerate(loads)}
    pieces.sort(key=lambda piece: (-piece[0], order[piece[1].table], piece[1].first_partition))
    weights = [0.0] * num_ranks
    dealt: list[list[Shard]] = [[] for _ in range(num_ranks)]
    equal: dict[float, list[int]] = {}  # ranks of whole tables, by load
    for share, shard in pieces:
        rank = min(range(num_ranks), key=lambda r: (weights[r], r))
        weights[rank] += share
        if shard.is_whole(num_partitions):
            equal.setdefault(share, []).append(rank)
        else:
            dealt[rank].append(shard)
    # whole tables of equal load may change places freely: neighbours stay together, as their
    # columns then travel as one block instead of one by one
    taken = {share: iter(sorted(ranks)) for share, ranks in equal.items()}
    for share, shard in pieces:
        if shard.is_whole(num_partitions):
            dealt[next(taken[share])].append(shard)
    return [
        tuple(sorted(shards, key=lambda shard: (order[shard.table], shard.first_partition)))
        for shards in dealt
    ]
