"""A recipe drafted from the first rows of a CSV file, for its owner to correct.

Every column gets one line with the reason for its part, so that a wrong guess is seen at once.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from data_prep.recipe import BadColumn, LabelColumn, TimeColumn
from data_prep.recipe_rows import times_of
from data_prep.text import Lines
from heterps_hpc import format as fmt
from heterps_hpc.errors import UserError

_SAMPLE_LINES = 2000
_LABEL_WORDS = ("click", "label", "target", "y", "conver", "purchase", "bought", "response")
_TIME_WORDS = ("time", "timestamp", "date", "datetime", "ts", "when", "hour", "day")
_SEPARATORS = ("|", ";", " ")
_MAX_CATEGORIES = 50  # of whole numbers; more different ones are taken for a quantity


@dataclass(frozen=True)
class SampledColumn:
    """A column's name and its fields in the first rows."""

    name: str
    fields: Sequence[str]

    @property
    def given(self) -> list[str]:
        """The fields that are not empty."""
        return [field for field in self.fields if field != ""]

    @property
    def distinct(self) -> list[str]:
        """Different fields, in the order of their first appearance."""
        return list(dict.fromkeys(self.given))

    def is_named(self, words: Sequence[str]) -> bool:
        """Whether a word of the name begins with one of these."""
        parts = self.name.lower().replace("-", "_").split("_")
        return any(part == word or part.startswith(word) for part in parts for word in words)

    @property
    def is_label(self) -> bool:
        """Whether all fields can be labels as they are, of two kinds at most."""
        try:
            values = {LabelColumn(column=self.name).value(field) for field in self.distinct}
        except BadColumn:
            return False
        return len(self.given) == len(self.fields) and values <= {0.0, 1.0}

    @property
    def is_time(self) -> bool:
        """Whether all fields are times as they stand."""
        try:
            times_of(pa.chunked_array([pa.array(self.fields)]), TimeColumn(column=self.name))
        except (BadColumn, pa.ArrowInvalid):
            return False
        return True

    @property
    def is_number(self) -> bool:
        """Whether all fields are numbers."""
        return bool(self.given) and all(_is_float(field) for field in self.given)

    @property
    def is_category_number(self) -> bool:
        """Whether all fields are whole numbers that look like names."""
        return all(field.isdecimal() for field in self.given)

    @property
    def separator(self) -> str | None:
        """What separates several values in one field, if anything seems to."""
        for separator in _SEPARATORS:
            if sum(separator in field for field in self.given) > len(self.given) / 4:
                return separator
        return None


def draft_recipe(path: Path, delimiter: str = ",") -> str:
    """The text of a recipe, with a comment on every guess."""
    columns = _sample(path, delimiter)
    label = _choose_label(columns)
    rest = [column for column in columns if column is not label]
    time = next((c for c in rest if c.is_named(_TIME_WORDS) and c.is_time), None)
    names = next((c for c in rest if c is not time and _names_rows(c)), None)
    features = [column for column in rest if column not in (time, names)]
    dense = [column for column in features if _is_dense(column)]
    slots = [column for column in features if column not in dense]
    lines = [
        f"# A recipe drafted from the first rows of {path.name}; correct what is wrong.",
        "# docs/data.md explains every key.",
        f"labels: [{{column: {_quoted(label.name)}}}]   {_seen(label)}"
        + ("" if label.is_label else "; NOT 0 or 1: add `positive: [..]` or `at_least: ..`"),
        "slots:                       # categories",
        *(f"  - {_slot(column)}   {_seen(column)}" for column in slots),
        f"dense:{'' if dense else ' []':<23}# quantities; `transform: log` for counts",
        *(f"  - {{column: {_quoted(column.name)}}}   {_seen(column)}" for column in dense),
    ]
    if names is not None:
        lines.append(f"id: {_quoted(names.name)}   # given back with the scores")
    if time is not None:
        lines.append(f"time: {_quoted(time.name)}   # for --split time")
    return "\n".join(lines) + "\n"


def _sample(path: Path, delimiter: str) -> list[SampledColumn]:
    lines = Lines(path)
    try:
        taken = [lines.skip_line().decode("utf-8-sig") for _ in range(_SAMPLE_LINES)]
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; a recipe is drafted from CSV files") from None
    finally:
        lines.close()
    rows = list(csv.reader([line for line in taken if line.strip()], delimiter=delimiter))
    if len(rows) < 2:
        raise UserError(f"{path}: a header and at least one row are needed to draft a recipe")
    header, body = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    if len(header) < 2 or not body:
        raise UserError(
            f"{path}: {len(header)} columns separated by {delimiter!r}; give --delimiter"
        )
    return [SampledColumn(name, [row[place] for row in body]) for place, name in enumerate(header)]


def _choose_label(columns: list[SampledColumn]) -> SampledColumn:
    """By name and content, by content, by name; else the first column."""
    named = [column for column in columns if column.is_named(_LABEL_WORDS)]
    fitting = [column for column in columns if column.is_label]
    both = [column for column in named if column in fitting]
    return [*both, *fitting, *named, *columns][0]


def _names_rows(column: SampledColumn) -> bool:
    """Different in every row, and not a quantity."""
    unique = len(column.distinct) == len(column.fields) and len(column.fields) > 1
    return unique and ("id" in column.name.lower() or not column.is_number)


def _is_dense(column: SampledColumn) -> bool:
    if not column.is_number:
        return False
    named_id = column.name.lower().endswith("id")
    few = len(column.distinct) <= _MAX_CATEGORIES
    return not (column.is_category_number and (named_id or few))


def _slot(column: SampledColumn) -> str:
    name = f"column: {_quoted(column.name)}"
    if column.given and column.is_category_number:
        return f"{{{name}, integer: true}}"
    separator = column.separator
    return f"{{{name}}}" if separator is None else f"{{{name}, separator: {json.dumps(separator)}}}"


def _seen(column: SampledColumn) -> str:
    shown = ", ".join(field[:20] for field in column.distinct[:3]) or "nothing"
    empty = len(column.fields) - len(column.given)
    gaps = f", {fmt.percent(empty / len(column.fields), 0)} empty" if empty else ""
    text = f"# {len(column.distinct)} different, such as {shown}{gaps}"
    return text if text.isprintable() else f"# {len(column.distinct)} different{gaps}"


def _quoted(name: str) -> str:
    """Plain where YAML reads it as the same text."""
    plain = name.replace("_", "").isalnum() and name[0].isalpha() and name.isascii()
    words = ("yes", "no", "true", "false", "on", "off", "null", "y", "n")
    return name if plain and name.lower() not in words else json.dumps(name)


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
