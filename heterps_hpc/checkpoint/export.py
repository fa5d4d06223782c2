"""Writes a checkpoint for serving: tables as Parquet or NPZ, dense weights as safetensors.

With `since`, only the rows that changed at that step or later: the serving side puts them over
what it has. (Dense weights all change at every step; they are always whole.)
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.checkpoint.contents import Contents
from heterps_hpc.checkpoint.manifest import RowFormat
from heterps_hpc.checkpoint.store import Checkpoint
from heterps_hpc.errors import UserError

TableFormat = Literal["parquet", "npz"]
Blocks = Iterator[dict[str, NDArray[Any]]]

_ROWS_PER_BLOCK = 65536


def export(
    checkpoint: Checkpoint,
    out: Path,
    *,
    tables: TableFormat = "parquet",
    since: int | None = None,
    state: bool = False,
) -> dict[str, Any]:
    """Write all tables and dense weights into a directory; returns what export.json says."""
    if tables not in _WRITERS:
        raise UserError(f"table format {tables!r}; valid: {', '.join(_WRITERS)}")
    try:
        (out / "tables").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made: {error.strerror}; choose another") from None
    manifest = checkpoint.manifest
    told: dict[str, Any] = {
        "job": manifest.job,
        "model": manifest.model,
        "step": manifest.step,
        "since": since,
        "dense": "dense.safetensors",
        "tables": {},
    }
    with Contents(checkpoint) as contents:
        for table, facts in manifest.tables.items():
            file = f"tables/{quote(table, safe='')}.{tables}"
            export_table = _Table(contents, table, facts, since, state)
            _WRITERS[tables](out / file, export_table)
            told["tables"][table] = {
                "file": file,
                "rows": export_table.num_rows,
                "dim": facts.dim,
                "dtype": facts.dtype,
            }
        _write_dense(out / "dense.safetensors", contents)
    write_atomically(out / "export.json", json.dumps(told, indent=2) + "\n")
    return told


class _Table:
    """The rows of one table that are to be exported."""

    def __init__(
        self, contents: Contents, name: str, row_format: RowFormat, since: int | None, state: bool
    ) -> None:
        self.name = name
        self.row_format = row_format
        self._contents = contents
        self._since = since
        self._columns = ["keys", "vectors", *(["state"] if state and row_format.state_dim else [])]
        places = contents.places("table", name)
        known = {place.array.column for place in places}
        if since is not None and "step" not in known and any(p.array.shape[0] for p in places):
            raise UserError(
                f"table {name!r} does not know when its rows changed, so changes since step "
                f"{since} cannot be told; train with `train.tables.track_changes: true`"
            )
        self.num_rows = sum(len(block["keys"]) for block in self.blocks(only_keys=True))

    @property
    def columns(self) -> dict[str, tuple[np.dtype[Any], int | None]]:
        """Type and width of the exported columns."""
        kind = np.dtype(self.row_format.dtype)
        widths = {"keys": None, "vectors": self.row_format.dim, "state": self.row_format.state_dim}
        return {
            name: (np.dtype(np.uint64) if name == "keys" else kind, widths[name])
            for name in self._columns
        }

    def blocks(self, only_keys: bool = False) -> Blocks:
        """The chosen rows, some at a time, in the order of partitions."""
        wanted = ["keys"] if only_keys else self._columns
        for partition in range(self._contents.checkpoint.manifest.num_partitions):
            for rows in self._contents.rows(self.name, partition, _ROWS_PER_BLOCK):
                if self._since is None:
                    yield {name: rows[name] for name in wanted}
                else:
                    changed = rows["step"] >= self._since
                    yield {name: rows[name][changed] for name in wanted}


def _write_parquet(path: Path, table: _Table) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def kind(dtype: np.dtype[Any], width: int | None) -> Any:
        item = pa.from_numpy_dtype(dtype)
        return item if width is None else pa.list_(item, width)

    schema = pa.schema([(name, kind(*facts)) for name, facts in table.columns.items()])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for block in table.blocks():
            arrays = []
            for name, (_, width) in table.columns.items():
                flat = pa.array(block[name].reshape(-1))
                fixed = flat if width is None else pa.FixedSizeListArray.from_arrays(flat, width)
                arrays.append(fixed)
            if len(block["keys"]):
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _write_npz(path: Path, table: _Table) -> None:
    """One .npy after the other, streamed: a table may be larger than the memory."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, (dtype, width) in table.columns.items():
            shape = (table.num_rows,) if width is None else (table.num_rows, width)
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_2_0(file, header)
                for block in table.blocks():
                    file.write(np.ascontiguousarray(block[name]).tobytes())


_WRITERS: dict[str, Callable[[Path, _Table], None]] = {
    "parquet": _write_parquet,
    "npz": _write_npz,
}


def _write_dense(path: Path, contents: Contents) -> None:
    from safetensors.numpy import save_file

    tensors = {name: contents.dense(name)["value"] for name in contents.names("dense")}
    save_file(tensors, path, metadata={"step": str(contents.checkpoint.step)})
