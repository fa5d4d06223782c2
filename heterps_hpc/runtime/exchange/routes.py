"""Who sends which columns of which tensor to whom: a pure function of model and layout.

Two kinds of tensors cross between ranks. An embedding's tensor is *slot-parallel* where it is
made (each holder has some columns of all rows, or a part of a sum if a slot is cut) and
*batch-parallel* where it is read. A dense layer's tensor is batch-parallel on both sides. In both
cases a route carries everything that one rank sends to another, so that a micro-batch costs one
message per route.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from heterps_hpc.layout import Layout, RankLayout
from heterps_hpc.model import Layer, Lookup, Model, is_data_tensor

Shapes = Mapping[str, tuple[int, ...]]  # of one sample


@dataclass(frozen=True)
class Piece:
    """Columns of a message that belong to columns of a tensor."""

    tensor: str
    tensor_column: int
    message_column: int
    width: int
    adds: bool = False  # a part of a sum: other ranks hold other keys of the same slot


@dataclass(frozen=True)
class Route:
    """All that one rank sends to another in each micro-batch (and gets back as gradients)."""

    source: int
    target: int
    pieces: tuple[Piece, ...]
    width: int


@dataclass(frozen=True)
class Pull:
    """One look-up on one rank, and where its vectors go in the rank's pooled matrix."""

    lookup: Lookup
    column: int
    width: int


@dataclass(frozen=True)
class Outlet:
    """The pooled matrix that a rank makes for one reading stage; all its replicas get rows."""

    stage: int
    pulls: tuple[Pull, ...]
    pieces: tuple[Piece, ...]
    width: int


def reading_stages(model: Model, layout: Layout) -> dict[str, list[int]]:
    """For every tensor that a layer writes, the stages that read it, in order."""
    readers: dict[str, list[int]] = {name: [] for layer in model.layers for name in layer.writes}
    for layer in model.layers:
        stage = layout.stage_of_layer(layer.name)
        for tensor in layer.reads:
            if not is_data_tensor(tensor) and stage not in readers[tensor]:
                readers[tensor].append(stage)
    return readers


def outlets_of(entry: RankLayout, model: Model, layout: Layout) -> list[Outlet]:
    """The pooled matrices that a rank makes, one per stage that reads its embeddings."""
    held = entry.partitions()
    readers = reading_stages(model, layout)
    outlets = []
    for stage in range(len(layout.stages)):
        pulls: list[Pull] = []
        pieces: list[Piece] = []
        column = 0
        for layer in _embeddings_of_stage(entry.stage, model, layout):
            for lookup, tensor_column in _columns(layer, model):
                if lookup.table not in held or stage not in readers[lookup.writes]:
                    continue
                width = lookup.width(model.table(lookup.table).dim)
                whole = len(held[lookup.table]) == layout.num_partitions
                pulls.append(Pull(lookup, column, width))
                pieces.append(Piece(lookup.writes, tensor_column, column, width, adds=not whole))
                column += width
        if pulls:
            outlets.append(Outlet(stage, tuple(pulls), _join(pieces), column))
    return outlets


def sparse_routes(model: Model, layout: Layout) -> list[Route]:
    """Routes from the holders of table shards to the replicas that read them."""
    routes = []
    for entry in layout.ranks:
        for outlet in outlets_of(entry, model, layout):
            for target in layout.stage_ranks(outlet.stage):
                routes.append(Route(entry.rank, target, outlet.pieces, outlet.width))
    return routes


def dense_routes(model: Model, layout: Layout, shapes: Shapes) -> list[Route]:
    """Routes of activations from stage to stage, for every pair of replicas.

    Which rows a pair shares depends on the batch: see `heterps_hpc.row_ranges.overlap`.
    """
    readers = reading_stages(model, layout)
    routes = []
    for stage in range(len(layout.stages)):
        for later in range(stage + 1, len(layout.stages)):
            pieces: list[Piece] = []
            column = 0
            for name in layout.stages[stage].layers:
                layer = model.layer(name)
                if layer.is_embedding:
                    continue
                for tensor in layer.writes:
                    if later in readers[tensor]:
                        width = prod(shapes[tensor])
                        pieces.append(Piece(tensor, 0, column, width))
                        column += width
            if pieces:
                routes += [
                    Route(source, target, tuple(pieces), column)
                    for source in layout.stage_ranks(stage)
                    for target in layout.stage_ranks(later)
                ]
    return routes


def dense_stages(model: Model, layout: Layout) -> list[int]:
    """Stages that run torch modules, in pipeline order."""
    return [
        index
        for index, stage in enumerate(layout.stages)
        if any(not model.layer(name).is_embedding for name in stage.layers)
    ]


def embedding_widths(model: Model) -> dict[str, int]:
    """Columns of every tensor that an embedding writes."""
    widths: dict[str, int] = {}
    for lookup in model.lookups:
        width = lookup.width(model.table(lookup.table).dim)
        widths[lookup.writes] = widths.get(lookup.writes, 0) + width
    return widths


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


def _join(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Merge neighbours that are neighbours on both sides: fewer, longer copies."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.tensor == piece.tensor
            and last.adds == piece.adds
            and last.tensor_column + last.width == piece.tensor_column
            and last.message_column + last.width == piece.message_column
        ):
            joined[-1] = Piece(
                last.tensor,
                last.tensor_column,
                last.message_column,
                last.width + piece.width,
                last.adds,
            )
        else:
            joined.append(piece)
    return tuple(joined)
