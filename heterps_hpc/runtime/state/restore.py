"""What a checkpoint holds, for a world of any layout: each rank reads only what it holds itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heterps_hpc.checkpoint import Contents, DamagedCheckpoint
from heterps_hpc.layout import Layout
from heterps_hpc.model import Lookup
from heterps_hpc.runtime.sparse import Prefetched
from heterps_hpc.runtime.stage import StageModules
from heterps_hpc.runtime.state.capture import ABSENT, COUNT, STATE, lookup_name
from heterps_hpc.runtime.tables import TableShards

Array = NDArray[Any]


def load_prefetched(
    contents: Contents, shards: TableShards, layout: Layout
) -> dict[int, Prefetched]:
    """The batches that were pulled before their step, as this rank would have pulled them.

    A slot split over ranks has a partial sum on each. Under the same split every rank takes its
    own again, bit for bit; under another, the holder of partition 0 takes the whole sum.
    """
    found: dict[int, Prefetched] = {}
    for name in contents.names("ahead"):
        if not name.isdecimal():
            raise DamagedCheckpoint(f"{contents.checkpoint.path}: pooled rows of step {name!r}")
        found[int(name)] = Prefetched(
            rows={
                lookup: _pooled_rows(contents, name, lookup, shards, layout)
                for lookup in shards.lookups
            },
            absent={lookup: _absent_keys(contents, name, lookup) for lookup in shards.lookups},
        )
    return found


def _absent_keys(contents: Contents, step: str, lookup: Lookup) -> NDArray[np.uint64]:
    """The keys of all ranks: a table takes those that it holds."""
    label = lookup_name(lookup) + ABSENT
    places = [p for p in contents.places("ahead", step) if p.array.column == label]
    found = [contents.whole(place) for place in places]
    if any(keys.dtype != np.uint64 or keys.ndim != 1 for keys in found):
        raise DamagedCheckpoint(f"{contents.checkpoint.path}: {label} of step {step} are no keys")
    return np.unique(np.concatenate([np.empty(0, np.uint64), *found]))


def _pooled_rows(
    contents: Contents, step: str, lookup: Lookup, shards: TableShards, layout: Layout
) -> Array:
    label = lookup_name(lookup)
    places = [p for p in contents.places("ahead", step) if p.array.column == label]
    if not places:
        raise DamagedCheckpoint(
            f"{contents.checkpoint.path}: no pooled rows of {label} for step {step}"
        )
    mine = shards.tables[lookup.table].partitions
    saved = {place.array.partitions for place in places}
    if saved == set(_held_now(layout, lookup.table)):
        return contents.whole(next(p for p in places if p.array.partitions == mine))
    total = contents.whole(places[0])
    if 0 not in mine:
        return np.zeros_like(total)
    for place in places[1:]:
        total = total + contents.whole(place)
    return total


def _held_now(layout: Layout, table: str) -> Iterable[tuple[int, ...]]:
    """The partitions of a table that each rank holds in this layout."""
    for entry in layout.ranks:
        held = [shard for shard in entry.shards if shard.table == table]
        if held:
            yield tuple(sorted(p for s in held for p in range(s.first_partition, s.last_partition)))


def load_dense(
    contents: Contents,
    modules: StageModules,
    *,
    only: set[str] | None = None,
    with_state: bool = True,
) -> None:
    """Parameters and optimizer state of a stage, by name: all of them, or `only` some."""
    flat = modules.parameters
    state: dict[str, torch.Tensor] = {}
    for name, (first, shape) in modules.named_slices().items():
        last = first + shape.numel()
        if shape.numel() == 0 or (only is not None and name not in only):
            continue
        columns = contents.dense(name)
        check_dense(contents, name, tuple(shape), columns)
        for column, value in columns.items():
            tensor = torch.from_numpy(value)
            if column == "value":
                flat.data[first:last].copy_(tensor.reshape(-1))
            elif not with_state:
                continue
            elif column.startswith(STATE):
                blank = torch.zeros_like(flat.data)
                whole = state.setdefault(column.removeprefix(STATE), blank)
                whole[first:last].copy_(tensor.reshape(-1))
            else:
                state[column.removeprefix(COUNT)] = tensor.reshape(()).to(flat.device)
    if state:
        modules.optimizer.state[flat] = state


def check_dense(
    contents: Contents, name: str, shape: tuple[int, ...], columns: Mapping[str, Array]
) -> None:
    """Refuse a parameter that is missing or has another shape."""
    value = columns.get("value")
    if value is None:
        raise DamagedCheckpoint(
            f"{contents.checkpoint.path}: no parameter {name!r}; it was made by another model"
        )
    for column, array in columns.items():
        expected = (1,) if column.startswith(COUNT) else (shape or (1,))
        if array.shape != expected:
            raise DamagedCheckpoint(
                f"{contents.checkpoint.path}: parameter {name!r} ({column}) has the shape "
                f"{array.shape}, here {expected}; it was made by another model"
            )
