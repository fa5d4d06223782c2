"""Delimited text with a recipe: parsed by pyarrow, checked line by line only when it refuses."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from data_prep.badrows import BadRow
from data_prep.recipe import BadColumn, Recipe
from data_prep.recipe_rows import rows_of, times_of
from data_prep.source import Int64s, TextSource, block_times, check_columns
from data_prep.text import Lines
from data_prep.timecut import sampled_cuts
from heterps_hpc.dataset import SampleRows, Schema
from heterps_hpc.errors import UserError


class CsvSource(TextSource):
    """Files of the same columns; a record is one line (no line ends inside quotes)."""

    def __init__(
        self,
        files: list[Path],
        recipe: Recipe,
        columns: list[str] | None = None,
        delimiter: str = ",",
        by: str = "data_prep.table",
    ) -> None:
        """`columns` names the columns of files without a header."""
        super().__init__(files, has_header=columns is None)
        self.recipe = recipe
        self.delimiter = delimiter
        self.by = by
        self.columns = columns or self._header(files[0])
        for path in files[1:] if columns is None else []:
            if self._header(path) != self.columns:
                raise UserError(
                    f"{path}: its header is not that of {files[0]}; prepare it separately"
                )
        check_columns(files[0], recipe.arrow_types(), self.columns)

    def _header(self, path: Path) -> list[str]:
        lines = Lines(path)
        line = lines.skip_line()
        lines.close()
        try:
            text = line.decode("utf-8-sig").rstrip("\r")
        except UnicodeDecodeError:
            raise UserError(f"{path}, line 1: the header is not UTF-8 text") from None
        return next(csv.reader([text], delimiter=self.delimiter), [])

    @property
    def schema(self) -> Schema:
        """Columns of the dataset."""
        return self.recipe.schema_of_rows

    def describe(self) -> dict[str, Any]:
        """What it is."""
        recipe = self.recipe.model_dump(mode="json")
        return {"by": self.by, **super().describe(), "recipe": recipe}

    def table(self, text: bytes) -> Any:
        """A block as an Arrow table of the columns in use; ArrowInvalid if it is not one."""
        types = self.recipe.arrow_types()
        return pacsv.read_csv(
            pa.BufferReader(text),
            pacsv.ReadOptions(
                use_threads=False, block_size=len(text) + 1, column_names=self.columns
            ),
            pacsv.ParseOptions(delimiter=self.delimiter),
            pacsv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )

    def parse(self, text: bytes) -> tuple[SampleRows, Int64s | None] | None:
        """Rows of a block of lines."""
        try:
            return self.rows(self.table(text)) if text.strip() else self.rows(self._nothing())
        except (pa.ArrowInvalid, BadColumn):
            return None

    def _nothing(self) -> Any:
        types = self.recipe.arrow_types()
        return pa.table({name: pa.array([], kind) for name, kind in types.items()})

    def rows(self, table: Any) -> tuple[SampleRows, Int64s | None]:
        """Rows of a table; a subclass may add columns of its own."""
        return rows_of(table, self.recipe)

    def sift(self, text: bytes) -> tuple[bytes, list[BadRow]]:
        """Good lines and bad ones."""
        good, bad = [], []
        types = self.recipe.arrow_types()
        for number, line in enumerate(text.split(b"\n")[:-1]):
            if not line:
                continue
            problem = self._problem(number, line, types)
            if problem is None:
                good.append(line)
            else:
                bad.append(problem)
        return b"".join(line + b"\n" for line in good), bad

    def _problem(self, number: int, line: bytes, types: dict[str, Any]) -> BadRow | None:
        try:
            decoded = line.decode()
        except UnicodeDecodeError as error:
            return BadRow(number, line, None, "UTF-8 text", f"byte {line[error.start]:#x}")
        try:
            fields = next(csv.reader([decoded], delimiter=self.delimiter, strict=True))
        except csv.Error as error:
            return BadRow(number, line, None, "fields, quoted where needed", str(error))
        if len(fields) != len(self.columns):
            expected = f"{len(self.columns)} fields separated by {self.delimiter!r}"
            return BadRow(number, line, None, expected, f"{len(fields)} fields")
        for place, (name, field) in enumerate(zip(self.columns, fields, strict=True)):
            missed = self._expected(name, field, types)
            if missed is not None:
                column = f"{place + 1} ({name})"
                return BadRow(number, line, column, missed, repr(field[:40]))
        try:
            self.rows(self.table(line + b"\n"))
        except (pa.ArrowInvalid, BadColumn) as error:
            why = f" ({error})" if isinstance(error, BadColumn) else ""
            return BadRow(number, line, None, f"a row of the recipe's types{why}", decoded[:80])
        return None

    def _expected(self, name: str, field: str, types: dict[str, Any]) -> str | None:
        """What was expected of a field, if it is not that."""
        when = self.recipe.time_column
        try:
            for label in self.recipe.labels:
                if label.column == name:
                    label.value(field)
            if when is not None and when.column == name:
                times_of(pa.array([field or None], pa.string()), when)
        except BadColumn as error:
            return str(error).removeprefix(f"{name}: expected ")
        is_weight = name == self.recipe.weight
        problem = _expected(field, types.get(name), may_be_empty=not is_weight)
        if problem is None and is_weight and float(field) < 0:
            return "a number, 0 or more"
        return problem

    def time_cuts(self, fractions: tuple[float, ...], segment_bytes: int) -> tuple[int, ...]:
        """By the time column if there is one, else by place."""
        if self.recipe.time is None:
            return super().time_cuts(fractions, segment_bytes)
        return sampled_cuts(block_times(self, segment_bytes), fractions)


def _expected(field: str, kind: Any, may_be_empty: bool) -> str | None:
    """What was expected of a field, if it is not that."""
    if kind is None or kind == pa.string() or pa.types.is_dictionary(kind):
        return None
    if field == "":
        return None if may_be_empty else "a number"
    try:
        if kind == pa.int64():
            return None if -(2**63) <= int(field) < 2**63 else "an integer of 64 bits"
        return None if math.isfinite(float(field)) else "a finite number"
    except ValueError:
        return "an integer" if kind == pa.int64() else "a number"
