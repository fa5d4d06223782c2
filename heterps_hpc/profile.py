"""Profile: seconds and bytes per (layer, pool), measured or taken from a data sheet.

The names follow the paper: OCT and ODT are the seconds that one rank needs to compute and to move
a layer's part of a batch of B_o samples; α and β are the parts of them that shrink with the number
of ranks. The number of samples belongs to the job, not to the profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from heterps_hpc.cluster import Link
from heterps_hpc.errors import UserError
from heterps_hpc.model import Model
from heterps_hpc.validation import Value

Positive = Annotated[int, Field(gt=0, le=2**30)]
NotNegativeFloat = Annotated[float, Field(ge=0, le=1e18)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e18)]
Fraction = Annotated[float, Field(ge=0, le=1)]
AtLeastOne = Annotated[float, Field(ge=1, le=1e6)]
FORMER_TERMS = ("peer_wait_seconds", "compute_factors")  # of a pool, in earlier profiles


class LayerInfo(Value):
    """What a layer is, whatever it runs on; bytes are per sample unless the name says otherwise."""

    name: str
    kind: str
    is_embedding: bool = False
    input_bytes: NotNegativeFloat = 0.0
    output_bytes: NotNegativeFloat = 0.0
    activation_bytes: NotNegativeFloat = 0.0  # kept from forward to backward
    weight_bytes_total: NotNegativeFloat = 0.0  # dense parameters: replicated, allreduced
    table_bytes_total: NotNegativeFloat = 0.0  # rows and their optimizer state: sharded
    table_rows_total: NotNegativeFloat = 0.0  # once all keys of the data have been seen
    flops: NotNegativeFloat = 0.0  # forward and backward
    keys_per_sample: NotNegativeFloat = 0.0  # of an embedding's slots together


class TensorInfo(Value):
    """A tensor that a cut may have to carry; its gradient travels back, as many bytes."""

    name: str
    writer: str
    readers: tuple[str, ...]
    bytes_per_sample: NotNegativeFloat


class TableLoad(Value):
    """What a table weighs: `work` (measured, or an estimate from its keys; only shares of it count)
    assigns shards to ranks, `bytes_total` must fit into memory."""

    name: str
    work: NotNegativeFloat
    bytes_total: NotNegativeFloat = 0.0


class Timing(Value):
    """One layer on one pool."""

    layer: str
    pool: str
    compute_seconds: NotNegativeFloat  # OCT
    compute_parallel: Fraction = 1.0  # α
    move_seconds: NotNegativeFloat = 0.0  # ODT of the layer itself; cuts are charged by bytes
    move_parallel: Fraction = 1.0  # β
    residual: NotNegativeFloat | None = None  # relative, where there are more points than unknowns
    rank_counts: tuple[Positive, ...] = ()  # measured k; beyond the largest, times are extrapolated
    estimated: bool = False


class PoolTiming(Value):
    """What a rank of a pool pays whatever the layers: the terms that the paper does not have."""

    pool: str
    batch_seconds: NotNegativeFloat = 0.0  # per batch and rank: loop, bookkeeping
    micro_batch_seconds: NotNegativeFloat = 0.0  # per micro-batch, stage and rank
    reduce_seconds_per_byte: NotNegativeFloat | None = None  # allreduce; else from the inner link
    reduce_latency_seconds: NotNegativeFloat | None = None
    message_seconds_per_byte: NotNegativeFloat = 0.0  # processor time of a byte sent or received
    message_seconds: NotNegativeFloat = 0.0  # and of a message, whatever its bytes
    cut_seconds_per_byte: NotNegativeFloat | None = None  # the same of a byte between two stages
    tables_batch_seconds: NotNegativeFloat | None = None  # as batch_seconds, of tables alone
    new_row_seconds: NotNegativeFloat = 0.0  # what a row costs once, besides being found
    read_key_seconds: NotNegativeFloat = 0.0  # of a key of the data, when its window is loaded
    overlap: Fraction = 1.0  # how much of the shorter of CT and DT hides behind the longer
    full_node_ranks: Positive = 1  # other times are those of a node with so many busy ranks
    alone: Fraction = 1.0  # seconds of a rank alone on its node, relative to one on a full node
    stretch: AtLeastOne = 1.0  # seconds that pass while a busy rank computes for one
    estimated: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_former_terms(cls, data: object) -> object:
        """Profiles of earlier versions stay readable."""
        if not isinstance(data, Mapping):
            return data
        return {key: value for key, value in data.items() if key not in FORMER_TERMS}


class Profile(Value):
    """Everything that planning knows about a model on a cluster."""

    model_config = ConfigDict(protected_namespaces=())

    version: Literal[1] = 1
    model: str
    model_fingerprint: str
    batch_size: Positive  # B_o
    window_rows: Annotated[int, Field(ge=0)] = 0  # samples that a rank loads at once; 0: unknown
    layers: Annotated[tuple[LayerInfo, ...], Field(min_length=1)]
    tensors: tuple[TensorInfo, ...] = ()
    tables: tuple[TableLoad, ...] = ()
    timings: tuple[Timing, ...]
    pools: tuple[PoolTiming, ...] = ()
    links: tuple[Link, ...] = ()
    notes: tuple[str, ...] = ()  # where figures come from: machine, date, sources of data sheets

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [layer.name for layer in self.layers]
        if len(set(names)) != len(names):
            raise ValueError("a layer is listed twice; each once, in the model's order")
        order = {name: index for index, name in enumerate(names)}
        for timing in self.timings:
            if timing.layer not in order:
                raise ValueError(f"a timing names layer {timing.layer!r}, which is not listed")
        for tensor in self.tensors:
            for name in (tensor.writer, *tensor.readers):
                if name not in order:
                    raise ValueError(f"tensor {tensor.name!r} names layer {name!r}, not listed")
            if any(order[reader] <= order[tensor.writer] for reader in tensor.readers):
                raise ValueError(f"tensor {tensor.name!r} is read before it is written")
        pairs = [(timing.layer, timing.pool) for timing in self.timings]
        if len(set(pairs)) != len(pairs):
            raise ValueError("a (layer, pool) pair has two timings; keep one")
        return self

    def timing(self, layer: str, pool: str) -> Timing:
        """The timing of a layer on a pool, or an error that says how to get it."""
        for timing in self.timings:
            if (timing.layer, timing.pool) == (layer, pool):
                return timing
        raise UserError(
            f"the profile has no times of layer {layer!r} on pool {pool!r}; measure that pool, "
            "give it a `data_sheet`, or drop it from the cluster"
        )

    def pool(self, name: str) -> PoolTiming:
        """The fixed costs of a pool; none if they were not measured."""
        for timing in self.pools:
            if timing.pool == name:
                return timing
        return PoolTiming(pool=name)

    @property
    def table_loads(self) -> dict[str, float]:
        """Work of every table, for assigning shards to ranks."""
        return {table.name: table.work for table in self.tables}

    @property
    def estimated_pools(self) -> list[str]:
        """Pools that were described by a data sheet and not measured."""
        return sorted({timing.pool for timing in self.timings if timing.estimated})

    def check_model(self, model: Model) -> None:
        """Refuse a profile that was taken with another model."""
        if self.model_fingerprint != model.fingerprint():
            raise UserError(
                f"the profile is of model {self.model!r} ({self.model_fingerprint}), this job "
                f"trains {model.name!r} ({model.fingerprint()}); measure again"
            )
        have, needed = [x.name for x in self.layers], [x.name for x in model.layers]
        if have != needed:
            lacking = [name for name in needed if name not in have]
            extra = [name for name in have if name not in needed]
            what = f"lacks layer {lacking[0]!r}" if lacking else "lists layers in another order"
            what = f"has layer {extra[0]!r} that is not in it" if extra and not lacking else what
            raise UserError(
                f"the profile of model {model.name!r} {what} ({len(have)} layers listed, the model "
                f"has {len(needed)}); measure again"
            )

    def merged(self, other: Profile) -> Profile:
        """This profile with the pools of another one of the same model added or replaced."""
        if other.model_fingerprint != self.model_fingerprint:
            raise UserError(
                f"cannot merge profiles of {self.model!r} and {other.model!r}; measure again"
            )
        if other.batch_size != self.batch_size:
            raise UserError(
                f"cannot merge profiles taken with batches of {self.batch_size} and "
                f"{other.batch_size}; measure both with one batch size"
            )
        pools = {timing.pool for timing in other.timings}
        ends = {link.pools for link in other.links} | {link.pools[::-1] for link in other.links}
        return self.model_copy(
            update={
                "timings": tuple(t for t in self.timings if t.pool not in pools) + other.timings,
                "pools": tuple(p for p in self.pools if p.pool not in pools) + other.pools,
                "links": tuple(x for x in self.links if x.pools not in ends) + other.links,
                "notes": self.notes + other.notes,
            }
        )

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a profile file."""
        return super().load(path)
