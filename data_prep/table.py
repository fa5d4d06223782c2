"""CSV and Parquet files with a recipe that the user gives (see data_prep/recipe.py).

python -m data_prep.table clicks-*.csv.gz --recipe recipe.yaml --out data/clicks
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from data_prep.command import run
from data_prep.csv_source import CsvSource
from data_prep.options import Parser, add_options, options_from
from data_prep.parquet_source import ParquetSource
from data_prep.recipe import Recipe
from data_prep.source import Source
from heterps_hpc.errors import UserError


def table_source(
    files: list[Path], recipe: Recipe, delimiter: str = ",", columns: list[str] | None = None
) -> Source:
    """Parquet or text, by the names of the files."""
    parquet = [path.suffix in (".parquet", ".pq") for path in files]
    if all(parquet):
        return ParquetSource(files, recipe)
    if any(parquet):
        raise UserError("some files are Parquet and some are not; prepare them separately")
    return CsvSource(files, recipe, columns, delimiter)


def main(argv: list[str]) -> int:
    """`heterps prepare csv` and `heterps prepare parquet`."""
    parser = Parser(prog="heterps prepare csv", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", type=Path, help="CSV (also compressed) or Parquet")
    parser.add_argument("--recipe", type=Path, required=True, help="YAML: the role of each column")
    parser.add_argument("--delimiter", default=",", help="between fields; 'tab' for a tab")
    parser.add_argument("--columns", help="names, comma-separated, if the files have no header")
    add_options(parser)
    given = parser.parse_args(argv)
    delimiter = "\t" if given.delimiter == "tab" else given.delimiter
    columns = given.columns.split(",") if given.columns else None
    return run(
        lambda: table_source(given.files, Recipe.load(given.recipe), delimiter, columns),
        options_from(given),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
