"""Scores as a file, written a batch at a time: CSV, Parquet or HDF5 by the file's suffix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.errors import UserError

Columns = Mapping[str, NDArray[Any]]


class ScoreFile(ABC):
    """Whole under its name when it is closed without an error, else not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._part = path.with_name(f".{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def create(path: Path) -> ScoreFile:
        """The kind that the suffix names; UserError for others, and where the file exists."""
        kind = _KINDS.get(path.suffix.lower())
        if kind is None:
            raise UserError(
                f"--out is {path.name!r}; its suffix names the format: {', '.join(sorted(_KINDS))}"
            )
        if path.exists():
            raise UserError(f"{path}: exists already; choose another file with --out")
        return kind(path)

    @abstractmethod
    def append(self, columns: Columns) -> None:
        """Add some rows; every call has the same columns."""

    @abstractmethod
    def _finish(self) -> None:
        """Write what is left and close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            self._finish()
            if error is None and self._part.exists():
                self._part.rename(self.path)
        finally:
            self._part.unlink(missing_ok=True)


class _ArrowFile(ScoreFile):
    """CSV or Parquet, by pyarrow."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._writer: Any = None

    def append(self, columns: Columns) -> None:
        """Add some rows."""
        import pyarrow as pa

        table = pa.table({name: pa.array(values) for name, values in columns.items()})
        if self._writer is None:
            self._writer = self._open(table.schema)
        self._writer.write_table(table)

    def _open(self, schema: Any) -> Any:
        if self.path.suffix.lower() == ".csv":
            import pyarrow.csv as pacsv

            return pacsv.CSVWriter(
                self._part, schema, write_options=pacsv.WriteOptions(quoting_style="needed")
            )
        import pyarrow.parquet as pq

        return pq.ParquetWriter(self._part, schema)

    def _finish(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Hdf5File(ScoreFile):
    """One data set of HDF5 per column."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        import h5py

        self._file = h5py.File(self._part, "w")

    def append(self, columns: Columns) -> None:
        """Add some rows."""
        import h5py

        for name, values in columns.items():
            texts = values.dtype == np.object_
            if name not in self._file:
                dtype = h5py.string_dtype() if texts else values.dtype
                self._file.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(4096,))
            dataset = self._file[name]
            first = dataset.shape[0]
            dataset.resize(first + len(values), axis=0)
            dataset[first:] = values

    def _finish(self) -> None:
        self._file.close()


_KINDS: dict[str, type[ScoreFile]] = {
    ".csv": _ArrowFile,
    ".parquet": _ArrowFile,
    ".pq": _ArrowFile,
    ".h5": _Hdf5File,
    ".hdf5": _Hdf5File,
}
