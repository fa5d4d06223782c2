"""Who sends which columns and rows of which tensor to whom: a pure function of model and layout.

Two kinds of tensors cross between ranks. An embedding's tensor is *slot-parallel* where it is
made (each holder has some columns of all rows, or a part of a sum if a slot is split) and
*batch-parallel* where it is read. A dense layer's tensor is batch-parallel on both sides. In both
cases a route carries everything that one rank sends to another, so that a micro-batch costs one
message per route, and its gradient comes back the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from heterps_hpc.layout import Layout, RankLayout
from heterps_hpc.model import Layer, Lookup, Model, is_data_tensor
from heterps_hpc.row_ranges import Range, overlap, replica_ranges

Shapes = Mapping[str, tuple[int, ...]]  # of one sample


@dataclass(frozen=True)
class ColumnSlice:
    """Columns of a tensor, and where they lie in a message."""

    tensor: str
    tensor_column: int
    message_column: int
    width: int
    adds: bool = False  # a part of a sum: other ranks hold other keys of the same slot


@dataclass(frozen=True)
class ChannelEnd:
    """A rank at one end of a route, and which rows of a batch it has."""

    rank: int
    num_replicas: int = 1
    replica: int = 0
    has_whole_batch: bool = False  # tables pool all rows of a batch at once, into one matrix

    def rows(self, num_rows: int, num_micro_batches: int) -> list[Range]:
        """Its rows of each micro-batch, counted within the batch."""
        return replica_ranges(num_rows, num_micro_batches, self.num_replicas, self.replica)


@dataclass(frozen=True)
class Route:
    """All that one rank sends to another in each micro-batch (and gets back as gradients)."""

    source: ChannelEnd
    target: ChannelEnd
    slices: tuple[ColumnSlice, ...]
    width: int


@dataclass(frozen=True)
class Pull:
    """One look-up on one rank, and where its vectors go in the rank's pooled matrix."""

    lookup: Lookup
    column: int
    width: int


@dataclass(frozen=True)
class PooledMatrix:
    """What a rank pools for one reading stage; each of that stage's replicas gets some rows."""

    pulls: tuple[Pull, ...]
    routes: tuple[Route, ...]
    width: int


@dataclass(frozen=True)
class RankRoutes:
    """One rank's part of the exchange."""

    replica: ChannelEnd  # this rank as a replica of its stage
    matrices: tuple[PooledMatrix, ...]
    rows_in: tuple[Route, ...]
    activations_in: tuple[Route, ...]
    activations_out: tuple[Route, ...]
    num_later_stages: int  # with dense layers


def routes_of(rank: int, model: Model, layout: Layout, shapes: Shapes) -> RankRoutes:
    """Everything that a rank sends and receives."""
    entry = layout.ranks[rank]
    matrices = {other.rank: pooled_matrices(other, model, layout) for other in layout.ranks}
    rows = [route for each in matrices.values() for matrix in each for route in matrix.routes]
    activations = activation_routes(model, layout, shapes)
    later = [stage for stage in dense_stages(model, layout) if stage > entry.stage]
    return RankRoutes(
        replica=_replica(rank, layout),
        matrices=tuple(matrices[rank]),
        rows_in=tuple(route for route in rows if route.target.rank == rank),
        activations_in=tuple(route for route in activations if route.target.rank == rank),
        activations_out=tuple(route for route in activations if route.source.rank == rank),
        num_later_stages=len(later),
    )


def message_rows(
    here: ChannelEnd, there: ChannelEnd, num_rows: int, num_micro_batches: int
) -> list[Range]:
    """The rows of each micro-batch that two ranks share, counted within the tensors of `here`.

    These are the rows of a micro-batch at a replica, and those of the whole batch where tables
    pool it.
    """
    mine = here.rows(num_rows, num_micro_batches)
    ranges = []
    for own, other in zip(mine, there.rows(num_rows, num_micro_batches), strict=True):
        first, last = overlap(own, other)
        origin = 0 if here.has_whole_batch else own[0]
        ranges.append((first - origin, last - origin))
    return ranges


def pooled_matrices(entry: RankLayout, model: Model, layout: Layout) -> list[PooledMatrix]:
    """The matrices that a rank pools, one per stage that reads its embeddings."""
    held = entry.partitions()
    readers = reading_stages(model, layout)
    source = ChannelEnd(entry.rank, has_whole_batch=True)
    matrices = []
    for stage in range(len(layout.stages)):
        pulls: list[Pull] = []
        slices: list[ColumnSlice] = []
        column = 0
        for layer in _embeddings_of_stage(entry.stage, model, layout):
            for lookup, tensor_column in _columns(layer, model):
                if lookup.table not in held or stage not in readers[lookup.writes]:
                    continue
                width = lookup.width(model.table(lookup.table).dim)
                adds = len(held[lookup.table]) < layout.num_partitions
                pulls.append(Pull(lookup, column, width))
                slices.append(ColumnSlice(lookup.writes, tensor_column, column, width, adds))
                column += width
        if pulls:
            joined = join_neighbours(slices)
            routes = tuple(
                Route(source, _replica(target, layout), joined, column)
                for target in layout.stage_ranks(stage)
            )
            matrices.append(PooledMatrix(tuple(pulls), routes, column))
    return matrices


def activation_routes(model: Model, layout: Layout, shapes: Shapes) -> list[Route]:
    """Routes of activations from stage to stage, for every pair of replicas."""
    readers = reading_stages(model, layout)
    routes = []
    for stage in range(len(layout.stages)):
        for later in range(stage + 1, len(layout.stages)):
            slices: list[ColumnSlice] = []
            column = 0
            for name in layout.stages[stage].layers:
                layer = model.layer(name)
                if layer.is_embedding:
                    continue
                for tensor in layer.writes:
                    if later in readers[tensor]:
                        width = prod(shapes[tensor])
                        slices.append(ColumnSlice(tensor, 0, column, width))
                        column += width
            if slices:
                routes += [
                    Route(_replica(source, layout), _replica(target, layout), tuple(slices), column)
                    for source in layout.stage_ranks(stage)
                    for target in layout.stage_ranks(later)
                ]
    return routes


def reading_stages(model: Model, layout: Layout) -> dict[str, list[int]]:
    """For every tensor that a layer writes, the stages that read it, in order."""
    readers: dict[str, list[int]] = {name: [] for layer in model.layers for name in layer.writes}
    for layer in model.layers:
        stage = layout.stage_of_layer(layer.name)
        for tensor in layer.reads:
            if not is_data_tensor(tensor) and stage not in readers[tensor]:
                readers[tensor].append(stage)
    return readers


def dense_stages(model: Model, layout: Layout) -> list[int]:
    """Stages that run torch modules, in pipeline order."""
    return [
        index
        for index, stage in enumerate(layout.stages)
        if any(not model.layer(name).is_embedding for name in stage.layers)
    ]


def stage_inputs(layers: Sequence[Layer]) -> tuple[list[str], set[str]]:
    """What layers read but do not write: from other ranks, and from the data set."""
    written: set[str] = set()
    external: dict[str, None] = {}
    data: set[str] = set()
    for layer in layers:
        for name in layer.reads:
            if is_data_tensor(name):
                data.add(name)
            elif name not in written:
                external[name] = None
        written.update(layer.writes)
    return list(external), data


def embedding_widths(model: Model) -> dict[str, int]:
    """Columns of every tensor that an embedding writes."""
    widths: dict[str, int] = {}
    for lookup in model.lookups:
        width = lookup.width(model.table(lookup.table).dim)
        widths[lookup.writes] = widths.get(lookup.writes, 0) + width
    return widths


def join_neighbours(slices: Sequence[ColumnSlice]) -> tuple[ColumnSlice, ...]:
    """Merge slices that are neighbours in tensor and message: fewer, longer copies."""
    joined: list[ColumnSlice] = []
    for each in slices:
        last = joined[-1] if joined else None
        if (
            last is not None
            and (last.tensor, last.adds) == (each.tensor, each.adds)
            and last.tensor_column + last.width == each.tensor_column
            and last.message_column + last.width == each.message_column
        ):
            joined[-1] = ColumnSlice(
                last.tensor,
                last.tensor_column,
                last.message_column,
                last.width + each.width,
                last.adds,
            )
        else:
            joined.append(each)
    return tuple(joined)


def _replica(rank: int, layout: Layout) -> ChannelEnd:
    entry = layout.ranks[rank]
    return ChannelEnd(rank, layout.stages[entry.stage].num_ranks, entry.replica)


def _embeddings_of_stage(stage: int, model: Model, layout: Layout) -> list[Layer]:
    layers = [model.layer(name) for name in layout.stages[stage].layers]
    return [layer for layer in layers if layer.is_embedding]


def _columns(layer: Layer, model: Model) -> list[tuple[Lookup, int]]:
    """Each look-up with its first column in the tensor that it writes."""
    filled: dict[str, int] = {}
    columns = []
    for lookup in layer.lookups:
        first = filled.get(lookup.writes, 0)
        columns.append((lookup, first))
        filled[lookup.writes] = first + lookup.width(model.table(lookup.table).dim)
    return columns
