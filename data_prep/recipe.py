"""The role of each column of a table: what the user writes for CSV and Parquet files.

labels: [{column: click}]          # 0 or 1, yes/no, true/false; or:
                                   # {column: answer, positive: [bought, "+1"]}, {…, at_least: 4}
slots:
  - {column: site}
  - {column: item, integer: true}
  - {column: tags, separator: "|"}
dense: [{column: price, transform: log}]
id: request        # how you know a row: carried to its score; these are all optional
weight: w
group: session
time: timestamp    # numbers, ISO 8601, or {column: timestamp, format: "%d/%m/%Y %H:%M"}
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from heterps_hpc.dataset import Schema, SlotSpec
from heterps_hpc.validation import Value

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]


class BadColumn(ValueError):
    """A column holds something that its part does not allow."""


class SlotColumn(Value):
    """A categorical feature; with a separator (or a list in Parquet) it has many keys."""

    column: str
    name: str | None = None
    integer: bool = False
    separator: Annotated[str, Field(min_length=1)] | None = None
    many: bool = False

    @property
    def slot(self) -> str:
        """Name of the slot."""
        return self.name or self.column

    @property
    def has_many(self) -> bool:
        """Whether a sample may have any number of keys."""
        return self.many or self.separator is not None


class DenseColumn(Value):
    """A number; `log` is log(1 + x) with negative values as 0. A missing one becomes 0."""

    column: str
    transform: Literal["none", "log"] = "none"


_TRUE, _FALSE = ("yes", "true", "y", "t", "on"), ("no", "false", "n", "f", "off")


class LabelColumn(Value):
    """A number from 0 to 1, yes/no or true/false; or 1 for the values that the recipe names.

    `positive` lists the values that count as 1, `at_least` the smallest; all others are 0.
    `any_number` keeps other numbers as they are, for a loss of your own.
    """

    column: str
    at_least: float | None = None
    positive: Annotated[tuple[bool | int | float | str, ...], Field(min_length=1)] | None = None
    any_number: bool = False

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        rules = (self.at_least is not None, self.positive is not None, self.any_number)
        if sum(rules) > 1:
            raise ValueError("give one of `at_least`, `positive` and `any_number`")
        return self

    def value(self, text: str) -> float:
        """The label that a field stands for; BadColumn says what was expected instead."""
        text = text.strip()
        if not text:
            raise BadColumn("a label in every row")
        if self.positive is not None:
            return float(any(_same(text, value) for value in self.positive))
        number = _number(text)
        if self.at_least is not None:
            return float(number >= self.at_least)
        if not (self.any_number or 0 <= number <= 1):
            raise BadColumn(
                "a label from 0 to 1, yes/no or true/false (a recipe maps others: `positive: [..]` "
                "or `at_least: ..`)"
            )
        return number


def _number(text: str) -> float:
    word = text.lower()
    if word in _TRUE or word in _FALSE:
        return float(word in _TRUE)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadColumn("a finite number, yes/no or true/false (`positive: [..]` maps others)")
    return number


def _same(text: str, value: bool | int | float | str) -> bool:
    """YAML reads a bare yes as true: then all words for it count."""
    if isinstance(value, bool):
        return text.lower() in (_TRUE if value else _FALSE)
    if isinstance(value, str):
        return text == value.strip()
    try:
        return float(text) == value
    except ValueError:
        return False


class TimeColumn(Value):
    """When a row happened: a number, ISO 8601, or in a format of `strptime`."""

    column: str
    format: str | None = None


class Recipe(Value):
    """The parts of a table's columns."""

    labels: tuple[LabelColumn, ...]
    slots: tuple[SlotColumn, ...]
    dense: tuple[DenseColumn, ...] = ()
    id: str | None = None
    weight: str | None = None
    group: str | None = None
    time: str | TimeColumn | None = None

    @model_validator(mode="after")
    def _something_to_learn(self) -> Self:
        if not self.labels:
            raise ValueError("name at least one label column")
        try:
            _ = self.schema_of_rows
        except ValidationError as error:
            why = "; ".join(
                str(each.get("ctx", {}).get("error", each["msg"])) for each in error.errors()
            )
            raise ValueError(
                f"{why} (`name:` gives a slot another name than its column's)"
            ) from None
        return self

    @property
    def time_column(self) -> TimeColumn | None:
        """The column of times, if there is one."""
        return TimeColumn(column=self.time) if isinstance(self.time, str) else self.time

    @property
    def schema_of_rows(self) -> Schema:
        """Columns of the dataset."""
        return Schema(
            slots=tuple(
                SlotSpec(name=slot.slot, kind="many" if slot.has_many else "one")
                for slot in self.slots
            ),
            dense_columns=tuple(column.column for column in self.dense),
            labels=tuple(column.column for column in self.labels),
            has_weight=self.weight is not None,
            has_group=self.group is not None,
            id_column=self.id,
        )

    def without_labels(self) -> Recipe:
        """For rows to be scored, which need not have labels, weights, groups and times."""
        unneeded = {"labels": (), "weight": None, "group": None, "time": None}
        return self.model_copy(update=unneeded)

    def arrow_types(self) -> dict[str, Any]:
        """How each used column is to be read from text."""
        types: dict[str, Any] = {}
        for slot in self.slots:
            if slot.integer and not slot.has_many:
                types[slot.column] = pa.int64()
            elif slot.has_many:
                types[slot.column] = pa.string()
            else:
                types[slot.column] = pa.dictionary(pa.int32(), pa.string())
        if self.group is not None:
            types.setdefault(self.group, pa.dictionary(pa.int32(), pa.string()))
        for column in self.labels:
            types.setdefault(column.column, pa.dictionary(pa.int32(), pa.string()))
        for dense in self.dense:
            types[dense.column] = pa.float64()
        if self.weight is not None:
            types[self.weight] = pa.float64()
        if self.time_column is not None:
            types.setdefault(self.time_column.column, pa.string())
        if self.id is not None:
            types.setdefault(self.id, pa.string())
        return types
