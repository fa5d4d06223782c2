"""Puts a checkpoint back into a world of any layout: each rank reads only what it holds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from heterps_hpc.checkpoint import Checkpoint, Contents, DamagedCheckpoint
from heterps_hpc.model import Lookup
from heterps_hpc.runtime.sparse import Prefetched
from heterps_hpc.runtime.stage import StageModules
from heterps_hpc.runtime.state.capture import ABSENT, COUNT, STATE, lookup_name
from heterps_hpc.runtime.state.compatibility import check_match
from heterps_hpc.runtime.state.table_rows import load_table
from heterps_hpc.runtime.training import Trainer

log = logging.getLogger(__name__)

Array = NDArray[Any]


def resume(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Go on exactly where the checkpoint was taken; before `Trainer.run`, on all ranks."""
    check_match(trainer, checkpoint)
    with Contents(checkpoint) as contents:
        if trainer.sparse is not None:
            for name, table in trainer.sparse.shards.tables.items():
                load_table(contents, name, table, trainer.watch.tick)
            trainer.prefetched = _ahead(trainer, contents)
        if trainer.dense is not None:
            load_dense(contents, trainer.dense.modules)
        _load_progress(trainer, contents)
    trainer.step = checkpoint.step
    log.info("resumed at step %d from %s", checkpoint.step, checkpoint.path)


def _ahead(trainer: Trainer, contents: Contents) -> dict[int, Prefetched]:
    """The batches that were pulled ahead, as this rank would have pulled them.

    A slot split over ranks has a partial sum on each. Under the same split every rank takes its
    own again, bit for bit; under another, the holder of partition 0 takes the whole sum.
    """
    assert trainer.sparse is not None
    lookups = trainer.sparse.shards.lookups
    found: dict[int, Prefetched] = {}
    for name in contents.names("ahead"):
        if not name.isdecimal():
            raise DamagedCheckpoint(f"{contents.checkpoint.path}: pooled rows of step {name!r}")
        found[int(name)] = Prefetched(
            rows={lookup: _ahead_rows(trainer, contents, name, lookup) for lookup in lookups},
            absent={lookup: _absent_keys(contents, name, lookup) for lookup in lookups},
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


def _ahead_rows(trainer: Trainer, contents: Contents, step: str, lookup: Lookup) -> Array:
    assert trainer.sparse is not None
    label = lookup_name(lookup)
    places = [p for p in contents.places("ahead", step) if p.array.column == label]
    if not places:
        raise DamagedCheckpoint(
            f"{contents.checkpoint.path}: no pooled rows of {label} for step {step}"
        )
    mine = trainer.sparse.shards.tables[lookup.table].partitions
    saved = {place.array.partitions for place in places}
    if saved == set(_held_now(trainer, lookup.table)):
        return contents.whole(next(p for p in places if p.array.partitions == mine))
    total = contents.whole(places[0])
    if 0 not in mine:
        return np.zeros_like(total)
    for place in places[1:]:
        total = total + contents.whole(place)
    return total


def _held_now(trainer: Trainer, table: str) -> Iterable[tuple[int, ...]]:
    """The partitions of a table that each rank holds in this layout."""
    for entry in trainer.world.layout.ranks:
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


def _load_progress(trainer: Trainer, contents: Contents) -> None:
    saved: dict[str, dict[int, Array]] = {}
    for name in contents.names("progress"):
        for place in contents.places("progress", name):
            saved.setdefault(name, {})[int(place.array.column)] = contents.whole(place)
    trainer.progress.restore(contents.checkpoint.step, saved)
