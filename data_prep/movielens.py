"""MovieLens' ratings: 100K (u.data), 1M and 10M (ratings.dat), later ones (ratings.csv).

The label is 1 for a rating of at least 4. Users and items are slots, and so are what the side
tables of the release say of them: gender, age, occupation, zip; genres (many per sample).

    python -m data_prep.movielens ml-1m --out data/ml-1m --split time
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from data_prep.badrows import BadRow
from data_prep.command import run
from data_prep.csv_source import CsvSource
from data_prep.movielens_side import SideTable, read_items, read_users
from data_prep.options import Parser, add_options, options_from
from data_prep.recipe import LabelColumn, Recipe, SlotColumn
from data_prep.source import Int64s
from heterps_hpc.dataset import SampleRows, Schema, SlotSpec
from heterps_hpc.errors import UserError

COLUMNS = ["userId", "movieId", "rating", "timestamp"]


def ratings_file(directory: Path) -> Path:
    """The ratings of a release."""
    for name in ("ratings.dat", "ratings.csv", "u.data"):
        if (directory / name).exists():
            return directory / name
    raise UserError(
        f"{directory}: no ratings.dat, ratings.csv or u.data; give the directory of a release"
    )


class MovieLensSource(CsvSource):
    """Ratings, joined with what is known of users and items."""

    def __init__(self, directory: Path, positive_from: float = 4.0) -> None:
        path = ratings_file(directory)
        recipe = Recipe(
            labels=(LabelColumn(column="rating", at_least=positive_from),),
            slots=(
                SlotColumn(column="userId", name="user", integer=True),
                SlotColumn(column="movieId", name="item", integer=True),
            ),
            group="userId",
            time="timestamp",
        )
        self._double_colon = path.suffix == ".dat"
        super().__init__(
            [path],
            recipe,
            None if path.suffix == ".csv" else COLUMNS,
            "," if path.suffix == ".csv" else "\t",
            by="data_prep.movielens",
        )
        self._users: SideTable | None = read_users(directory)
        self._items: SideTable | None = read_items(directory)

    @property
    def schema(self) -> Schema:
        """Columns of the dataset."""
        schema = super().schema
        side = [
            SlotSpec(name=name, kind="one" if keys.offsets is None else "many")
            for table in (self._users, self._items)
            if table is not None
            for name, keys in table.features.items()
        ]
        return schema.model_copy(update={"slots": (*schema.slots, *side)})

    def parse(self, text: bytes) -> tuple[SampleRows, Int64s | None] | None:
        """Rows of a block of lines."""
        return super().parse(text.replace(b"::", b"\t") if self._double_colon else text)

    def sift(self, text: bytes) -> tuple[bytes, list[BadRow]]:
        """Good lines and bad ones."""
        return super().sift(text.replace(b"::", b"\t") if self._double_colon else text)

    def rows(self, table: Any) -> tuple[SampleRows, Int64s | None]:
        """Rows with the features of their users and items."""
        rows, time = super().rows(table)
        slots = dict(rows.slots)
        for side, column in ((self._users, "userId"), (self._items, "movieId")):
            if side is not None:
                slots.update(side.look_up(table[column].to_numpy()))
        return SampleRows(slots, rows.dense, rows.labels, rows.weight, rows.group), time


def main(argv: list[str]) -> int:
    """`heterps prepare movielens`."""
    parser = Parser(prog="heterps prepare movielens", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("directory", type=Path, help="an unpacked release, such as ml-1m")
    parser.add_argument("--positive-from", type=float, default=4.0, help="rating that is a 1")
    add_options(parser)
    given = parser.parse_args(argv)
    return run(lambda: MovieLensSource(given.directory, given.positive_from), options_from(given))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
