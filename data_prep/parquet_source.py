"""Parquet files with a recipe: a segment is a run of row groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.recipe import BadColumn, Recipe
from data_prep.recipe_rows import rows_of
from data_prep.source import Block, ReadTask, SourceSegment, block_times, check_columns
from data_prep.timecut import sampled_cuts
from heterps_hpc.dataset import Schema
from heterps_hpc.errors import UserError

_BATCH_ROWS = 65_536


class ParquetSource:
    """Files of the same columns."""

    def __init__(self, files: list[Path], recipe: Recipe) -> None:
        self.files = files
        self.recipe = recipe
        self._sizes = [path.stat().st_size for path in files]
        self._groups = [_row_groups(path) for path in files]
        self._first_row = np.cumsum([0, *(sum(rows) for rows, _ in self._groups)]).tolist()
        for path in files:
            check_columns(path, recipe.arrow_types(), pq.read_schema(path).names)

    @property
    def schema(self) -> Schema:
        """Columns of the dataset."""
        return self.recipe.schema_of_rows

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return sum(self._sizes)

    def describe(self) -> dict[str, Any]:
        """What it is."""
        files = [[path.name, size] for path, size in zip(self.files, self._sizes, strict=True)]
        recipe = self.recipe.model_dump(mode="json")
        return {"by": "data_prep.table", "files": files, "recipe": recipe}

    def file_name(self, file: int) -> str:
        """For messages."""
        return str(self.files[file])

    def _runs(self, file: int, segment_bytes: int) -> list[tuple[int, int]]:
        """Row groups first .. last - 1 of each segment."""
        runs, first, total = [], 0, 0
        sizes = self._groups[file][1]
        for group, size in enumerate(sizes):
            total += size
            if total >= segment_bytes or group + 1 == len(sizes):
                runs.append((first, group + 1))
                first, total = group + 1, 0
        return runs

    def tasks(self, segment_bytes: int) -> list[ReadTask]:
        """One for each segment."""
        return [
            ReadTask(file, number, stream=False)
            for file in range(len(self.files))
            for number in range(len(self._runs(file, segment_bytes)))
        ]

    def segments(self, task: ReadTask, skip: int, segment_bytes: int) -> Iterator[SourceSegment]:
        """The one segment of a task."""
        if skip == 0:
            first, last = self._runs(task.file, segment_bytes)[task.segment]
            yield SourceSegment(task.file, task.segment, self._blocks(task.file, first, last))

    def _blocks(self, file: int, first: int, last: int) -> Iterator[Block]:
        path = self.files[file]
        columns = list(self.recipe.arrow_types())
        rows_before = sum(self._groups[file][0][:first])
        group_rows = sum(self._groups[file][0][first:last])
        num_bytes = sum(self._groups[file][1][first:last])
        try:
            with pq.ParquetFile(path) as opened:
                for batch in opened.iter_batches(
                    _BATCH_ROWS, list(range(first, last)), columns, use_threads=False
                ):
                    rows, time = rows_of(pa.Table.from_batches([batch]), self.recipe)
                    if time is None:
                        time = np.arange(rows.num_rows) + (self._first_row[file] + rows_before)
                    rows_before += rows.num_rows
                    yield Block(rows, time, num_bytes * rows.num_rows // max(group_rows, 1))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, BadColumn, OSError) as error:
            raise UserError(
                f"{path}, after row {rows_before}: {error}; fix the file or the recipe"
            ) from error

    def time_cuts(self, fractions: tuple[float, ...], segment_bytes: int) -> tuple[int, ...]:
        """By the time column if there is one, else by place."""
        if self.recipe.time is None:
            return tuple(int(self._first_row[-1] * fraction) for fraction in fractions)
        return sampled_cuts(block_times(self, segment_bytes), fractions)


def _row_groups(path: Path) -> tuple[list[int], list[int]]:
    """Rows and bytes of each row group."""
    try:
        metadata = pq.read_metadata(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a whole Parquet file: {error}") from error
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [group.num_rows for group in groups], [group.total_byte_size for group in groups]
