"""libsvm's text format: LABEL INDEX:VALUE INDEX:VALUE …

Indices become the keys of one slot, `features`, and values their weights; `qid:N` becomes the
group. Labels -1 and +1 become 0 and 1; others need --positive.

python -m data_prep.libsvm a9a --out data/a9a
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.badrows import BadRow
from data_prep.command import run
from data_prep.hashing import keys_of_integers
from data_prep.options import Parser, add_options, options_from
from data_prep.source import Int64s, TextSource
from heterps_hpc.dataset import Keys, SampleRows, Schema, SlotSpec, offsets_of

SLOT = "features"
_USUAL = {-1.0: 0.0, 0.0: 0.0, 1.0: 1.0}


class LibsvmSource(TextSource):
    """Files of sparse rows. `positive` lists the labels that count as 1; without it -1 or 0 is
    negative and 1 positive. `groups` keeps qid as the group id."""

    def __init__(
        self, files: list[Path], positive: tuple[float, ...] | None = None, groups: bool = False
    ) -> None:
        super().__init__(files)
        self.positive = positive
        self.groups = groups

    @property
    def schema(self) -> Schema:
        """One slot of many weighted keys."""
        slot = SlotSpec(name=SLOT, kind="many", weighted=True)
        return Schema(slots=(slot,), has_group=self.groups)

    def describe(self) -> dict[str, Any]:
        """What it is."""
        positive = None if self.positive is None else list(self.positive)
        return {"by": "data_prep.libsvm", **super().describe(), "positive": positive}

    def parse(self, text: bytes) -> tuple[SampleRows, Int64s | None] | None:
        """Rows of a block of lines; None if one of them is odd."""
        rows = []
        for line in text.splitlines():
            if line.strip():
                row = self._row(line)
                if isinstance(row, str):
                    return None
                rows.append(row)
        lengths = np.array([len(row[2]) for row in rows], np.int64)
        indices = np.array([index for row in rows for index in row[2]], np.uint64)
        values = np.array([value for row in rows for value in row[3]], np.float32)
        keys = Keys(keys_of_integers(SLOT, indices), offsets_of(lengths), values)
        labels = np.array([row[0] for row in rows], np.float32).reshape(-1, 1)
        group = np.array([row[1] for row in rows], np.uint64) if self.groups else None
        return SampleRows({SLOT: keys}, labels=labels, group=group), None

    def sift(self, text: bytes) -> tuple[bytes, list[BadRow]]:
        """Good lines, and bad ones with what was expected."""
        good, bad = [], []
        for number, line in enumerate(text.split(b"\n")[:-1]):
            row = self._row(line) if line.strip() else None
            if isinstance(row, str):
                bad.append(
                    BadRow(number, line, None, row, repr(line[:60].decode(errors="replace")))
                )
            else:
                good.append(line)
        return b"".join(line + b"\n" for line in good), bad

    def _row(self, line: bytes) -> tuple[float, int, list[int], list[float]] | str:
        """Label, group, indices and values; or what was expected instead."""
        words = line.partition(b"#")[0].split()
        if not words:
            return "a label, then INDEX:VALUE"
        try:
            label = self._label(float(words[0]))
        except ValueError:
            return "a number as the label"
        if label is None:
            return "a label -1, 0 or 1; --positive names those that count as 1"
        group, indices, values = 0, [], []
        for word in words[1:]:
            name, colon, text = word.partition(b":")
            try:
                if name == b"qid":
                    group = int(text)
                    continue
                index, value = int(name), float(text)
            except ValueError:
                return f"INDEX:VALUE, not {word[:40].decode(errors='replace')!r}"
            if not (colon and 0 <= index < 2**63 and math.isfinite(value)):
                return f"INDEX:VALUE, not {word[:40].decode(errors='replace')!r}"
            indices.append(index)
            values.append(value)
        return label, group, indices, values

    def _label(self, given: float) -> float | None:
        if self.positive is not None:
            return float(given in self.positive)
        return _USUAL.get(given)


def main(argv: list[str]) -> int:
    """`heterps prepare libsvm`."""
    parser = Parser(prog="heterps prepare libsvm", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", type=Path, help="text, also compressed")
    parser.add_argument("--positive", type=float, nargs="+", help="labels that count as 1")
    parser.add_argument("--groups", action="store_true", help="keep qid as the group id")
    add_options(parser)
    given = parser.parse_args(argv)
    positive = None if given.positive is None else tuple(given.positive)
    return run(lambda: LibsvmSource(given.files, positive, given.groups), options_from(given))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
