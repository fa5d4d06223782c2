"""Plan and layout: what the scheduler decided, and that decision bound to ranks.

The layout is the waist of the package: planning writes it, launching and training only read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from heterps_hpc.cluster import Cores, DeviceKind
from heterps_hpc.errors import UserError
from heterps_hpc.layout_checks import check_layout, check_tables
from heterps_hpc.model import Model
from heterps_hpc.validation import Value

Positive = Annotated[int, Field(gt=0, le=1_000_000)]  # ranks, nodes, partitions
NotNegative = Annotated[int, Field(ge=0, le=1_000_000)]

CERTIFIED = 2e-6  # relative: the exact solver proves what is left to HiGHS within half of it


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
    optimum_samples_per_second: float | None = None  # instead, if the goal is a budget alone
    gap: float | None = None
    gap_is_bound: bool = False  # the exact solver ran out of time: optimum_money is a lower bound

    @property
    def is_certified(self) -> bool:
        """Whether it is proven to be the best, as closely as anything is proven."""
        return self.gap is not None and not self.gap_is_bound and self.gap < CERTIFIED

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
    cores_per_rank: Cores
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
        check_layout(self)
        return self

    @property
    def num_ranks(self) -> int:
        """Ranks of the whole job."""
        return len(self.ranks)

    def stage_ranks(self, stage: int) -> list[int]:
        """World ranks of a stage, by replica."""
        members = [entry for entry in self.ranks if entry.stage == stage]
        return [entry.rank for entry in sorted(members, key=lambda entry: entry.replica)]

    @property
    def ranks_by_pool(self) -> dict[str, int]:
        """How many ranks each pool has."""
        return {part.pool: part.num_ranks for part in self.components}

    def reduces(self, rank: int) -> bool:
        """Whether a rank sums dense gradients with others of its stage."""
        entry = self.ranks[rank]
        return entry.dense and self.stages[entry.stage].num_ranks > 1

    def stage_of_layer(self, layer: str) -> int:
        """Index of the stage that holds a layer."""
        return next(i for i, stage in enumerate(self.stages) if layer in stage.layers)

    def check_model(self, model: Model) -> None:
        """Refuse a layout that was made for another model."""
        placed = [layer for stage in self.stages for layer in stage.layers]
        expected = [layer.name for layer in model.layers]
        if self.model_fingerprint != model.fingerprint():
            raise UserError(
                f"the layout was made for model {self.model!r} ({self.model_fingerprint}, "
                f"{len(placed)} layers), this job has {model.name!r} ({model.fingerprint()}, "
                f"{len(expected)} layers); plan again"
            )
        if placed != expected:
            raise UserError(
                f"layout: its stages have the layers {', '.join(placed)}; they must be those of "
                f"the model, in order: {', '.join(expected)}; put them back, or plan again"
            )
        check_tables(self, model)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a layout file."""
        return super().load(path)
