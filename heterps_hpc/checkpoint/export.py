"""Writes a checkpoint for serving: tables as Parquet or NPZ, dense weights as safetensors.

With `since`, only the rows that changed at that step or later: the serving side puts them over
what it has. (Dense weights all change at every step; they are always whole.) Rows that were evicted
since then are known by comparison with a `base`, the export or checkpoint that it has.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.checkpoint.contents import Contents
from heterps_hpc.checkpoint.exported import EXPORT_FILE, ExportedTable, ExportSpec, keys_of
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
    base: Path | None = None,
) -> ExportSpec:
    """Write all tables and dense weights into a directory; returns what export.json says."""
    if tables not in _WRITERS:
        raise UserError(f"table format {tables!r}; valid: {', '.join(_WRITERS)}")
    try:
        (out / "tables").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made: {error.strerror}; choose another") from None
    manifest = checkpoint.manifest
    written: dict[str, ExportedTable] = {}
    with Contents(checkpoint) as contents:
        for table, row_format in manifest.tables.items():
            stem = f"tables/{quote(table, safe='')}"
            rows = _Table(contents, table, row_format, since, state)
            _WRITERS[tables](out / f"{stem}.{tables}", rows)
            written[table] = ExportedTable(
                file=f"{stem}.{tables}",
                rows=rows.num_rows,
                dim=row_format.dim,
                dtype=row_format.dtype,
                optimizer=row_format.optimizer,
                state_dim=row_format.state_dim if state else 0,
            )
            if base is not None:
                gone = _removed_keys(contents, table, base)
                np.save(out / f"{stem}.removed.npy", gone)
                update = {"removed": len(gone), "removed_file": f"{stem}.removed.npy"}
                written[table] = written[table].model_copy(update=update)
        _write_dense(out / "dense.safetensors", contents)
    spec = ExportSpec(
        job=manifest.job,
        model=manifest.model,
        step=manifest.step,
        since=since,
        dense="dense.safetensors",
        tables=written,
        data_schema=manifest.data_schema,
        key_recipe=manifest.key_recipe,
    )
    write_atomically(out / EXPORT_FILE, spec.model_dump_json(indent=2) + "\n")
    return spec


def may_evict(checkpoint: Checkpoint) -> bool:
    """Whether the job lets tables forget rows, which an export of changes cannot show by itself."""
    settings = checkpoint.manifest.must_match
    names = ("train.tables.evict_after_steps", "train.tables.evict_below_score")
    return any(settings.get(name) is not None for name in names)


def _removed_keys(contents: Contents, table: str, base: Path) -> NDArray[np.uint64]:
    """Keys that have a row in the base and none in this checkpoint; only the base's are held."""
    before = keys_of(base, table)
    still_there = np.zeros(len(before), np.bool_)
    for partition in range(contents.checkpoint.manifest.num_partitions):
        for rows in contents.rows(table, partition, _ROWS_PER_BLOCK):
            places = np.searchsorted(before, rows["keys"])
            found = places < len(before)
            found[found] = before[places[found]] == rows["keys"][found]
            still_there[places[found]] = True
    return before[~still_there]


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
                f"{since} are not known; train with `train.tables.track_changes: true`"
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

    schema = pa.schema([(name, kind(*form)) for name, form in table.columns.items()])
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
