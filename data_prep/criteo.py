"""Criteo's click logs, the Kaggle challenge (train.txt) and the 1 TB logs (day_0 .. day_23).

Dense columns become log(1 + x) with missing and negative values as 0; categories become keys as
data_prep/hashing.py says; the order of files and rows stands for the time.

    python -m data_prep.criteo train.txt --out data/criteo --split time
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from data_prep import criteo_rows
from data_prep.badrows import BadRow
from data_prep.command import run
from data_prep.options import Parser, add_options, options_from
from data_prep.source import Int64s, TextSource
from heterps_hpc.dataset import SampleRows, Schema


class CriteoSource(TextSource):
    """Tab-separated rows of 40 fields without a header."""

    @property
    def schema(self) -> Schema:
        """Columns of the dataset."""
        return criteo_rows.SCHEMA

    def describe(self) -> dict[str, Any]:
        """What it is."""
        return {"by": "data_prep.criteo", **super().describe()}

    def parse(self, text: bytes) -> tuple[SampleRows, Int64s | None] | None:
        """Rows of a block of lines."""
        rows = criteo_rows.parse(text)
        return None if rows is None else (rows, None)

    def sift(self, text: bytes) -> tuple[bytes, list[BadRow]]:
        """Good lines and bad ones."""
        return criteo_rows.sift(text)


def main(argv: list[str]) -> int:
    """`heterps prepare criteo`."""
    parser = Parser(prog="heterps prepare criteo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", type=Path, help="plain, .gz, .zst, .bz2 or .xz")
    add_options(parser)
    given = parser.parse_args(argv)
    return run(lambda: CriteoSource(given.files), options_from(given))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
