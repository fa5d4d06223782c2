"""Avazu's click log (train.gz or train.csv of the challenge): 22 categories, a click and an hour.

The hour (YYMMDDHH) becomes the time of the row and two slots, hour_of_day and weekday.

    python -m data_prep.avazu train.gz --out data/avazu --split time
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.badrows import BadRow
from data_prep.command import run
from data_prep.csv_source import CsvSource
from data_prep.hashing import keys_of_integers
from data_prep.options import Parser, add_options, options_from
from data_prep.recipe import BadColumn, LabelColumn, Recipe, SlotColumn
from data_prep.source import Int64s
from heterps_hpc.dataset import Keys, SampleRows, Schema, SlotSpec

CATEGORIES = [
    "C1",
    "banner_pos",
    "site_id",
    "site_domain",
    "site_category",
    "app_id",
    "app_domain",
    "app_category",
    "device_id",
    "device_ip",
    "device_model",
    "device_type",
    "device_conn_type",
    "C14",
    "C15",
    "C16",
    "C17",
    "C18",
    "C19",
    "C20",
    "C21",
]
RECIPE = Recipe(
    labels=(LabelColumn(column="click"),),
    slots=tuple(SlotColumn(column=name) for name in CATEGORIES),
    time="hour",
)
DERIVED = ("hour_of_day", "weekday")


class AvazuSource(CsvSource):
    """CSV with Avazu's header."""

    def __init__(self, files: list[Path]) -> None:
        super().__init__(files, RECIPE, by="data_prep.avazu")

    @property
    def schema(self) -> Schema:
        """Columns of the dataset."""
        schema = super().schema
        derived = tuple(SlotSpec(name=name) for name in DERIVED)
        return schema.model_copy(update={"slots": (*schema.slots, *derived)})

    def rows(self, table: Any) -> tuple[SampleRows, Int64s | None]:
        """Rows with the slots that are derived from the hour."""
        rows, hours = super().rows(table)
        assert hours is not None
        assert rows.labels is not None
        if not np.isin(rows.labels, (0, 1)).all():
            raise BadColumn("click: expected 0 or 1")
        hour, weekday = hour_and_weekday(hours)
        slots = {
            **rows.slots,
            "hour_of_day": Keys(keys_of_integers("hour_of_day", hour.view(np.uint64))),
            "weekday": Keys(keys_of_integers("weekday", weekday.view(np.uint64))),
        }
        return SampleRows(slots, rows.dense, rows.labels), hours

    def _problem(self, number: int, line: bytes, types: dict[str, Any]) -> BadRow | None:
        problem = super()._problem(number, line, types)
        if problem is None or problem.column is not None:
            return problem
        if "types" in problem.expected:
            expected = "click 0 or 1 and an hour YYMMDDHH"
            return BadRow(number, line, "2 (click) or 3 (hour)", expected, problem.got)
        return problem


def hour_and_weekday(hours: Int64s) -> tuple[Int64s, Int64s]:
    """Hour of the day, and day of the week (0 is Monday), from YYMMDDHH."""
    year, month = 2000 + hours // 1_000_000, hours // 10_000 % 100
    day, hour = hours // 100 % 100, hours % 100
    in_range = (hours > 0) & (year < 2100) & (hour < 24)
    in_range &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    if not in_range.all():
        raise BadColumn("hour: expected YYMMDDHH")
    months = (year - 1970) * 12 + month - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + day - 1
    return hour, (days + 3) % 7  # 1 January 1970 was a Thursday


def main(argv: list[str]) -> int:
    """`heterps prepare avazu`."""
    parser = Parser(prog="heterps prepare avazu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", type=Path, help="CSV with a header, also compressed")
    add_options(parser)
    given = parser.parse_args(argv)
    return run(lambda: AvazuSource(given.files), options_from(given))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
