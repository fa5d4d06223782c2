"""Warm start: a new run on new data that begins with the weights of an earlier one.

Unlike a resumed run it starts at step 0, and the model may have changed: tables and parameters are
taken by name where they fit, and what is new starts as it would have.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.checkpoint import Checkpoint, Contents
from heterps_hpc.core import Rows, Table, partition_of
from heterps_hpc.errors import UserError
from heterps_hpc.runtime.stage import StageModules
from heterps_hpc.runtime.state.restore import load_dense
from heterps_hpc.runtime.state.table_rows import table_facts
from heterps_hpc.runtime.training import Trainer

log = logging.getLogger(__name__)

Array = NDArray[Any]


def warm_start(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Begin with a checkpoint's rows and parameters; before `Trainer.run`, on all ranks."""
    taken: list[str] = []
    new: list[str] = []
    with Contents(checkpoint) as contents:
        if trainer.sparse is not None:
            for name, table in trainer.sparse.shards.tables.items():
                known = name in checkpoint.manifest.tables
                (taken if known else new).append(f"table {name}")
                if known:
                    _take_rows(trainer, contents, name, table)
        if trainer.dense is not None:
            fit = _fitting(contents, trainer.dense.modules)
            before = checkpoint.manifest.must_match.get("train.dense.optimizer")
            same = before == trainer.job.train.dense.optimizer
            load_dense(contents, trainer.dense.modules, only=fit, with_state=same)
            for name in trainer.dense.modules.named_slices():
                (taken if name in fit else new).append(f"parameter {name}")
    log.info("warm start from %s: took %s", checkpoint.path, ", ".join(taken) or "nothing")
    if new:
        log.warning("warm start: not in the checkpoint, or of another shape: %s", ", ".join(new))
    everything = trainer.world.control.allreduce(len(taken))
    if everything == 0:
        raise UserError(
            f"train.init_from: {checkpoint.path} (model {checkpoint.manifest.model!r}) has no "
            "table and no parameter of this model; give a checkpoint of the same or a like model"
        )


def _fitting(contents: Contents, modules: StageModules) -> set[str]:
    """Parameters that the checkpoint has in the same shape."""
    found = set()
    for name, (_, shape) in modules.named_slices().items():
        for place in contents.places("dense", name):
            if place.array.column == "value" and place.array.shape == (tuple(shape) or (1,)):
                found.add(name)
    return found


def _take_rows(trainer: Trainer, contents: Contents, name: str, table: Table) -> None:
    """Rows by key: the earlier run may have had another number of partitions."""
    here, there = table_facts(table), contents.checkpoint.manifest.tables[name]
    if here.dim != there.dim:
        raise UserError(
            f"train.init_from: table {name!r} has {here.dim} numbers per row here, "
            f"{there.dim} in {contents.checkpoint.path}; use the same width, or rename the table"
        )
    num_partitions = table.config.num_partitions
    same_parts = contents.checkpoint.manifest.num_partitions == num_partitions
    held = np.zeros(num_partitions, bool)
    held[list(table.partitions)] = True
    keep_state = here.optimizer == there.optimizer and here.state_dim == there.state_dim
    sources = table.partitions if same_parts else range(contents.checkpoint.manifest.num_partitions)
    for source in sources:
        for columns in contents.rows(name, source):
            parts = partition_of(columns["keys"], num_partitions)
            for part in np.unique(parts[held[parts]]):
                chosen = {key: value[parts == part] for key, value in columns.items()}
                table.load(int(part), _fresh_rows(chosen, table, keep_state))
        trainer.watch.tick()


def _fresh_rows(columns: dict[str, Array], table: Table, keep_state: bool) -> Rows:
    """Rows for step 0: vectors and, if it is of the same optimizer, its state; counters anew."""
    keys, dtype = columns["keys"], table.config.dtype
    state = np.full((len(keys), table.state_dim), table.config.initial_accumulator, dtype)
    if keep_state and "state" in columns:
        state = columns["state"].astype(dtype, copy=False)
    counters = {
        "step": np.zeros(len(keys), np.uint32),
        "show": columns.get("show", np.zeros(len(keys), np.float32)),
        "click": columns.get("click", np.zeros(len(keys), np.float32)),
    }
    vectors = np.ascontiguousarray(columns["vectors"].astype(dtype, copy=False))
    return Rows(np.ascontiguousarray(keys), vectors, np.ascontiguousarray(state), counters)
