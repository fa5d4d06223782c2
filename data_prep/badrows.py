"""Rows that cannot be used: stop at the first one, or count them and keep them aside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from heterps_hpc.dataset.write.disk import disk_errors
from heterps_hpc.errors import UserError

if TYPE_CHECKING:
    from data_prep.options import PrepareOptions
    from data_prep.pool import Meter
    from data_prep.source import Block


@dataclass(frozen=True)
class BadRow:
    """What is wrong with a line; `line` counts from 0 within its block."""

    line: int
    text: bytes
    column: str | None
    expected: str
    got: str

    def explain(self) -> str:
        """In words, without the place in the file."""
        where = "" if self.column is None else f"column {self.column}: "
        return f"{where}expected {self.expected}, got {self.got}"


class BadRowLog:
    """The bad rows of one segment, in a file that is made when the first one comes."""

    def __init__(self, options: PrepareOptions, file_name: str, path: Path, meter: Meter) -> None:
        self._options = options
        self._file_name = file_name
        self._path = path
        self._meter = meter
        self._file: IO[bytes] | None = None
        self.count = 0

    def take(self, block: Block) -> None:
        """Stop or write down, as the options say."""
        for row in block.bad:
            place = self._file_name
            if block.line is not None:
                place += f", line {block.line + row.line}"
            if self._options.on_bad_row == "stop":
                raise UserError(
                    f"{place}: {row.explain()}; fix the file, or leave such rows out with "
                    "--on-bad-row skip"
                )
            self.count += 1
            total = self._meter.add_bad(1)
            if total > self._options.max_bad:
                raise UserError(
                    f"{place}: {row.explain()}; that is bad row number {total}, more than "
                    f"--max-bad {self._options.max_bad}: is it the right format?"
                )
            self._write(f"{place}: {row.explain()}\t".encode() + row.text + b"\n")

    def _write(self, line: bytes) -> None:
        with disk_errors(self._path):
            if self._file is None:
                self._file = self._path.open("wb")
            self._file.write(line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
