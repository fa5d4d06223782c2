"""A recipe drafted from the first rows of a CSV or Parquet file, for its owner to correct.

Every column gets one line with the reason for its part, so that a wrong guess is seen at once.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from data_prep.recipe import BadColumn, LabelColumn, TimeColumn
from data_prep.recipe_rows import times_of
from data_prep.text import Lines
from heterps_hpc import format as fmt
from heterps_hpc.dataset import SlotSpec
from heterps_hpc.errors import UserError

_SAMPLE_LINES = 2000
_LABEL_WORDS = ("click", "label", "target", "y", "conver", "purchase", "bought", "response")
_TIME_WORDS = ("time", "timestamp", "date", "datetime", "ts", "when", "hour", "day")
_SEPARATORS = ("|", ";", " ")
_DELIMITERS = (";", "\t", "|", ",")
_EARLIEST = 1_000_000  # a smaller whole number is an hour or a day of the week, not a time
_MAX_CATEGORIES = 50  # of whole numbers; more different ones are taken for a quantity


@dataclass(frozen=True)
class SampledColumn:
    """A column's name and its fields in the first rows."""

    name: str
    fields: Sequence[str]
    is_list: bool = False  # of a Parquet file: its fields are the texts of lists

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
        parts = re.split(r"[^a-z0-9]+", re.sub("([a-z])([A-Z])", r"\1_\2", self.name).lower())
        return any(
            part == word or (len(word) > 2 and part.startswith(word))
            for part in parts
            for word in words
        )

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
        """Whether all fields are dates, or large whole numbers under the name of a time."""
        try:
            times = times_of(
                pa.chunked_array([pa.array(self.fields)]), TimeColumn(column=self.name)
            )
        except (BadColumn, pa.ArrowInvalid):
            return False
        return not self.is_number or (self.is_named(_TIME_WORDS) and times.min() >= _EARLIEST)

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
    is_parquet = path.suffix in (".parquet", ".pq")
    columns = _sample_parquet(path) if is_parquet else _sample(path, delimiter)
    unnamed = [column for column in columns if not column.name.strip()]
    columns = [column for column in columns if column not in unnamed]
    label = _choose_label(columns)
    rest = [column for column in columns if column is not label]
    time = next((c for c in rest if c.is_time), None)
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
    if unnamed:
        lines.append("# left out: a column without a name, such as the index that pandas writes")
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
        likely = max(_DELIMITERS, key="".join(header).count)
        option = "--delimiter tab" if likely == "\t" else f"--delimiter '{likely}'"
        raise UserError(
            f"{path}: {fmt.plural(len(header), 'column')} separated by {delimiter!r}; "
            f"is it {option}?"
        )
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise UserError(f"{path}: columns appear twice: {', '.join(twice)}; rename one of each")
    return [SampledColumn(name, [row[place] for row in body]) for place, name in enumerate(header)]


def _sample_parquet(path: Path) -> list[SampledColumn]:
    """The first rows; what is no text is shown as one."""
    try:
        with pq.ParquetFile(path) as file:
            rows = next(file.iter_batches(_SAMPLE_LINES), None)
    except (OSError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(f"{path}: not a Parquet file that can be read: {why}") from None
    if rows is None or not rows.num_rows:
        raise UserError(f"{path}: at least one row is needed to draft a recipe")
    found = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
        fields = ["" if value is None else str(value) for value in column.to_pylist()]
        found.append(SampledColumn(name, fields, is_list))
    return found


def _choose_label(columns: list[SampledColumn]) -> SampledColumn:
    """By name and content, by content, by name; else the first column."""
    named = [column for column in columns if column.is_named(_LABEL_WORDS)]
    fitting = [column for column in columns if column.is_label]
    both = [column for column in named if column in fitting]
    return [*both, *fitting, *named, *columns][0]


def _names_rows(column: SampledColumn) -> bool:
    """Different in every row, and not a quantity."""
    unique = len(column.distinct) == len(column.fields) and len(column.fields) > 1
    return unique and not column.is_list and ("id" in column.name.lower() or not column.is_number)


def _is_dense(column: SampledColumn) -> bool:
    if not column.is_number:
        return False
    named_id = column.name.lower().endswith("id")
    few = len(column.distinct) <= _MAX_CATEGORIES
    return not (column.is_category_number and (named_id or few))


def _slot(column: SampledColumn) -> str:
    name = f"column: {_quoted(column.name)}"
    if not _can_be_a_slot(column.name):
        name += (
            f", name: {_quoted(re.sub(r'[^0-9A-Za-z]+', '_', column.name).strip('_') or 'slot')}"
        )
    if column.is_list:
        return f"{{{name}, many: true}}"
    if column.given and column.is_category_number:
        return f"{{{name}, integer: true}}"
    separator = column.separator
    return f"{{{name}}}" if separator is None else f"{{{name}, separator: {json.dumps(separator)}}}"


def _can_be_a_slot(name: str) -> bool:
    try:
        SlotSpec(name=name)
    except ValidationError:
        return False
    return True


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
    return name if plain and name.lower() not in words else json.dumps(name, ensure_ascii=False)


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
