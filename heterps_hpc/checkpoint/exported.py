"""An export read back: what export.json says, the keys of its tables, and its weights for a run.

A new run can begin with an export (`train.init_from`) as with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.checkpoint.contents import Contents
from heterps_hpc.checkpoint.manifest import Manifest, NotNegative, RowFormat
from heterps_hpc.checkpoint.shardreader import DamagedCheckpoint
from heterps_hpc.checkpoint.store import Checkpoint
from heterps_hpc.errors import UserError
from heterps_hpc.validation import Value

EXPORT_FILE = "export.json"
_ROWS_PER_BLOCK = 65_536

Columns = dict[str, NDArray[Any]]


class ExportedTable(Value):
    """One table of an export; `removed` counts rows of the base that are gone, if one was given."""

    file: str
    rows: NotNegative
    dim: NotNegative
    dtype: Literal["float32", "float64"]
    optimizer: str = ""
    state_dim: NotNegative = 0  # 0: without the optimizer's state
    removed: NotNegative | None = None
    removed_file: str | None = None


class ExportSpec(Value):
    """What export.json says."""

    job: str
    model: str
    step: NotNegative
    since: int | None = None
    dense: str
    tables: dict[str, ExportedTable]
    data_schema: dict[str, Any] | None = None  # of the training data, as checkpoints keep it
    key_recipe: dict[str, Any] | None = None  # how raw values became keys


def keys_of(path: Path, table: str) -> NDArray[np.uint64]:
    """The keys of a table in a whole export or in a checkpoint, sorted; none if it is not there."""
    with open_weights(path) as contents:
        manifest = contents.checkpoint.manifest
        found = [np.empty(0, np.uint64)]
        if table in manifest.tables:
            for partition in range(manifest.num_partitions):
                found += [rows["keys"] for rows in contents.rows(table, partition)]
    return np.sort(np.concatenate(found))


def open_weights(path: Path | str) -> Contents:
    """What a checkpoint, the newest one of a run directory, or an export holds."""
    path = Path(path)
    if (path / EXPORT_FILE).is_file():
        return ExportContents.open(path)
    return Contents(Checkpoint.open(path))


class ExportContents(Contents):
    """An export behind the interface of a checkpoint's contents: all rows are one partition."""

    def __init__(self, path: Path, spec: ExportSpec) -> None:
        manifest = Manifest(
            job=spec.job,
            step=spec.step,
            saved_at=0.0,
            model=spec.model,
            model_fingerprint="",
            data_fingerprint="",
            num_partitions=1,
            must_match={},
            tables={
                name: RowFormat(
                    dim=table.dim,
                    state_dim=table.state_dim,
                    dtype=table.dtype,
                    optimizer=table.optimizer,
                )
                for name, table in spec.tables.items()
            },
            shards=(),
            data_schema=spec.data_schema,
            key_recipe=spec.key_recipe,
        )
        super().__init__(Checkpoint(path, manifest))
        self._path = path
        self._spec = spec
        self._dense = self._load_dense()

    @classmethod
    def open(cls, path: Path) -> Self:
        """UserError for an export of changed rows only: it is not a whole model."""
        spec = ExportSpec.load(path / EXPORT_FILE)
        if spec.since is not None:
            raise UserError(
                f"{path}: holds only rows that changed since step {spec.since}; give a whole "
                "export, or the checkpoint itself"
            )
        return cls(path, spec)

    def rows(
        self, table: str, partition: int, max_rows: int = _ROWS_PER_BLOCK
    ) -> Iterator[Columns]:
        """All rows of a table, some at a time."""
        spec = self._spec.tables[table]
        file = self._path / spec.file
        try:
            blocks = _parquet_rows if file.suffix == ".parquet" else _npz_rows
            for columns in blocks(file, max_rows):
                yield {name: columns[name].reshape(len(columns["keys"]), -1) if name != "keys"
                       else columns[name] for name in columns}  # fmt: skip
        except (OSError, ValueError, KeyError) as error:
            raise DamagedCheckpoint(f"{file}: cannot be read: {error}") from error

    def names(self, kind: str) -> list[str]:
        """Tables, or dense tensors."""
        return sorted(self._spec.tables if kind == "table" else self._dense)

    def dense(self, name: str) -> Mapping[str, NDArray[Any]]:
        """A dense tensor; an export has no state of the optimizer for it."""
        return {"value": self._dense[name]}

    def dense_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a dense tensor; None if it is not there."""
        return self._dense[name].shape if name in self._dense else None

    def _load_dense(self) -> dict[str, NDArray[Any]]:
        from safetensors.numpy import load_file

        file = self._path / self._spec.dense
        try:
            return {name: np.atleast_1d(value) for name, value in load_file(file).items()}
        except Exception as error:  # whatever the library finds wrong with it
            raise DamagedCheckpoint(f"{file}: cannot be read: {error}") from error


def _parquet_rows(file: Path, max_rows: int) -> Iterator[Columns]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(max_rows):
            columns = {}
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                flat = column if name == "keys" else column.flatten()
                columns[name] = flat.to_numpy(zero_copy_only=False)
            yield columns


def _npz_rows(file: Path, max_rows: int) -> Iterator[Columns]:
    with np.load(file, allow_pickle=False) as arrays:
        whole = {name: arrays[name] for name in arrays.files}
    for first in range(0, len(whole["keys"]), max_rows):
        yield {name: array[first : first + max_rows] for name, array in whole.items()}
