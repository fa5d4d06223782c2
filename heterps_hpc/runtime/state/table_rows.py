"""Rows of a checkpoint back into a table: of the shape that the checkpoint names, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.checkpoint import Contents, DamagedCheckpoint, RowFormat
from heterps_hpc.core import Rows, Table
from heterps_hpc.errors import UserError

Array = NDArray[Any]


def row_format(table: Table) -> RowFormat:
    """What the rows of a table look like."""
    config = table.config
    return RowFormat(
        dim=config.dim,
        state_dim=table.state_dim,
        dtype=config.dtype,
        optimizer=config.optimizer,
    )


def load_table(contents: Contents, name: str, table: Table, tick: Callable[[], None]) -> None:
    """The rows of all partitions that a table holds; `tick` is called before each."""
    saved = contents.checkpoint.manifest.tables.get(name)
    if saved != row_format(table):
        raise DamagedCheckpoint(
            f"{contents.checkpoint.path}: table {name!r} is {saved}, here {row_format(table)}"
        )
    num_rows = contents.num_rows(name, table.partitions)
    try:
        table.reserve(num_rows)
        for partition in table.partitions:
            tick()
            _load_partition(contents, name, table, partition)
    except DamagedCheckpoint:
        raise
    except (KeyError, ValueError) as error:  # the core checks what it loads
        raise DamagedCheckpoint(
            f"{contents.checkpoint.path}: table {name!r} cannot be loaded: {error}"
        ) from error
    except MemoryError as error:
        raise UserError(
            f"{contents.checkpoint.path}: no memory for {num_rows} rows of table {name!r} on this "
            "rank; use more sparse ranks, or keep rows on disk (train.tables.hot_bytes)"
        ) from error


def _load_partition(contents: Contents, name: str, table: Table, partition: int) -> None:
    for columns in contents.rows(name, partition):
        table.load(partition, as_rows(columns, table))
    extra = contents.extra(name, partition)
    if extra:
        table.load_extra(partition, extra)


def as_rows(columns: dict[str, Array], table: Table) -> Rows:
    """Columns of a checkpoint as rows of a table."""
    known = ("keys", "vectors", "state")
    counters = {name: value for name, value in columns.items() if name not in known}
    keys = columns["keys"]
    state = columns.get("state", np.empty((len(keys), 0), table.config.dtype))
    return Rows(keys, columns["vectors"], state, counters)
