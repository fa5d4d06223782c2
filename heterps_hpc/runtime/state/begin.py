"""Where a run begins: at its newest checkpoint, with another run's weights, or from scratch.

A *warm start* is a new run that begins with the weights of an earlier one. Unlike a resumed run it
starts at step 0, and the model may have changed: tables and parameters are taken by name where
they fit, and what is new starts as it would have.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.checkpoint import Checkpoint, Contents, newest
from heterps_hpc.checkpoint.compatibility import check_match
from heterps_hpc.checkpoint.exported import open_weights
from heterps_hpc.core import Rows, Table, partition_of
from heterps_hpc.errors import UserError
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.stage import StageModules
from heterps_hpc.runtime.state.restore import load_dense
from heterps_hpc.runtime.state.table_rows import row_format
from heterps_hpc.table_size import certain_rows, expected_rows

log = logging.getLogger(__name__)

Array = NDArray[Any]


def begin(rank: Rank, run_dir: RunDir) -> None:
    """Put a rank where its run is; all ranks call it.

    A run directory is one run: whatever started us again (a requeue, a restart, `--resume`), we
    continue from its newest complete checkpoint if there is one.
    """
    checkpoint = _agree_on_newest(rank, run_dir)
    if checkpoint is not None:
        resume(rank, checkpoint)
    elif rank.job.train.init_from is not None:
        with open_weights(rank.job.train.init_from) as contents:
            warm_start(rank, contents)
    else:
        reserve_for_data(rank)


def reserve_for_data(rank: Rank) -> None:
    """Get memory for the rows that the data will surely give, before the first batch needs them."""
    for name, rows in rows_for_data(rank).items():
        assert rank.tables is not None
        rank.tables.reserve(name, rows)


def rows_for_data(rank: Rank, *, all_data: bool = False) -> dict[str, int]:
    """Rows of this rank's tables that the data will surely give, or all of it would, where the job
    names no number."""
    if rank.tables is None:
        return {}
    manifest, train = rank.dataset.manifest, rank.job.train
    said = expected_rows(rank.model, train)  # for these memory is there already
    if all_data:
        train = train.model_copy(update={"steps": None})
    sizes = {
        name: certain_rows(rank.model, name, train, manifest.slots, manifest.num_rows)
        for name in rank.tables.tables
        if name not in said
    }
    return {name: rows for name, rows in sizes.items() if rows > 0}


def resume(rank: Rank, checkpoint: Checkpoint) -> None:
    """Continue exactly where a checkpoint of the same run was taken."""
    data = rank.dataset.manifest.fingerprint()
    check_match(checkpoint, rank.job, rank.model.fingerprint(), data)
    rank.restore(checkpoint)
    log.info("resumed at step %d from %s", checkpoint.step, checkpoint.path)


def _agree_on_newest(rank: Rank, run_dir: RunDir) -> Checkpoint | None:
    """The newest checkpoint as one rank sees it: file systems may show others an older state."""
    control = rank.world.control
    found = newest(run_dir.checkpoints) if control.rank == 0 else None
    path = control.bcast(None if found is None else found.path)
    return None if path is None else Checkpoint.open(path)


def warm_start(rank: Rank, contents: Contents) -> None:
    """Begin with the rows and parameters of a checkpoint or an export; on all ranks, before
    training."""
    checkpoint = contents.checkpoint
    taken: list[str] = []
    new: list[str] = []
    if rank.tables is not None:
        for name, table in rank.tables.tables.items():
            known = name in checkpoint.manifest.tables
            (taken if known else new).append(f"table {name}")
            if known:
                _take_rows(rank, contents, name, table)
    if rank.modules is not None:
        fit = _fitting(contents, rank.modules)
        before = checkpoint.manifest.must_match.get("train.dense.optimizer")
        same = before == rank.job.train.dense.optimizer
        load_dense(contents, rank.modules, only=fit, with_state=same)
        for name in rank.modules.named_slices():
            (taken if name in fit else new).append(f"parameter {name}")
    log.info("warm start from %s: took %s", checkpoint.path, ", ".join(taken) or "nothing")
    if new:
        log.warning("warm start: not in the checkpoint, or of another shape: %s", ", ".join(new))
    everything = rank.world.control.allreduce(len(taken))
    if everything == 0:
        raise UserError(
            f"train.init_from: {checkpoint.path} (model {checkpoint.manifest.model!r}) has no "
            "table and no parameter of this model; give a checkpoint of the same or a similar model"
        )


def _fitting(contents: Contents, modules: StageModules) -> set[str]:
    """Parameters that the checkpoint has in the same shape."""
    return {
        name
        for name, (_, shape) in modules.named_slices().items()
        if contents.dense_shape(name) == (tuple(shape) or (1,))
    }


def _take_rows(rank: Rank, contents: Contents, name: str, table: Table) -> None:
    """Rows by key: the earlier run may have had another number of partitions."""
    here, there = row_format(table), contents.checkpoint.manifest.tables[name]
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
        rank.timer.tick()


def _fresh_rows(columns: dict[str, Array], table: Table, keep_state: bool) -> Rows:
    """Rows for step 0: vectors, and their state if the optimizer is the same; no counters."""
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
