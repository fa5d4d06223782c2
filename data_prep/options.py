"""What all preparations have in common, on the command line and in Python."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from heterps_hpc.dataset import Compression
from heterps_hpc.dataset.write.shard_writer import BLOCK_ROWS
from heterps_hpc.errors import UserError

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class PrepareOptions:
    """How to turn any source into datasets."""

    out: Path
    name: str | None = None
    split: Literal["none", "hash", "time"] = "none"
    valid_fraction: float = 0.0
    test_fraction: float = 0.1
    seed: int = 0
    min_count: int = 1
    max_keys: int | None = None
    count_memory_mb: int = 1024
    segment_mb: float = 256.0
    processes: int = 1
    compression: Compression = "none"
    block_rows: int = BLOCK_ROWS
    on_bad_row: Literal["stop", "skip"] = "stop"
    max_bad: int = 1000
    show_progress: bool = False

    def __post_init__(self) -> None:
        kept = 1 - self.valid_fraction - self.test_fraction
        if min(self.valid_fraction, self.test_fraction) < 0 or kept <= 0:
            raise UserError(
                f"valid fraction {self.valid_fraction} and test fraction {self.test_fraction} "
                "leave no training rows; they must not be negative and add up to less than 1"
            )
        for what, value in (
            ("min-count", self.min_count),
            ("processes", self.processes),
            ("max-keys", 1 if self.max_keys is None else self.max_keys),
            ("count-memory-mb", self.count_memory_mb),
        ):
            if value < 1:
                raise UserError(f"--{what} is {value}; it must be at least 1")
        if self.segment_mb <= 0:
            raise UserError(f"--segment-mb is {self.segment_mb}; it must be positive")

    @property
    def segment_bytes(self) -> int:
        """Text per segment."""
        return max(1, int(self.segment_mb * (1 << 20)))

    def part_path(self, part: str) -> Path:
        """Where a part goes: a directory of its own, or the output itself without a split."""
        return self.out if self.split == "none" else self.out / part

    def content(self) -> dict[str, object]:
        """The options that change what is written, which identify a preparation."""
        return {
            name: getattr(self, name)
            for name in (
                "split",
                "valid_fraction",
                "test_fraction",
                "seed",
                "min_count",
                "max_keys",
                "count_memory_mb",
                "segment_bytes",
                "compression",
                "block_rows",
                "on_bad_row",
            )
        }


class Parser(argparse.ArgumentParser):
    """Ends with one line where words are wrong or missing, as all commands do."""

    def error(self, message: str) -> NoReturn:
        """What is wrong, and where the options are listed."""
        self.exit(2, f"heterps: {message}; see `{self.prog} --help`\n")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The common options of every `heterps prepare` command."""
    parser.add_argument("--out", type=Path, required=True, help="directory to make")
    parser.add_argument("--name", help="name of the dataset (default: that of the directory)")
    split = parser.add_argument_group("split into OUT/train, OUT/valid, OUT/test")
    split.add_argument("--split", choices=("none", "hash", "time"), default="none")
    split.add_argument("--valid-fraction", type=float, default=0.0)
    split.add_argument("--test-fraction", type=float, default=0.1)
    split.add_argument("--seed", type=int, default=0, help="of the split and of key samples")
    keys = parser.add_argument_group("keys")
    keys.add_argument("--min-count", type=int, default=1, help="rarer keys become one key")
    keys.add_argument("--max-keys", type=int, help="fold each slot into at most this many keys")
    keys.add_argument("--count-memory-mb", type=int, default=1024, help="for --min-count")
    work = parser.add_argument_group("work")
    work.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    work.add_argument("--segment-mb", type=float, default=256.0, help="text per shard")
    work.add_argument("--compression", choices=("none", "lzf", "lz4", "zstd"), default="none")
    work.add_argument("--on-bad-row", choices=("stop", "skip"), default="stop")
    work.add_argument("--max-bad", type=int, default=1000, help="how many bad rows may be skipped")
    work.add_argument("--no-progress", action="store_true", help="no progress bar")


def options_from(given: argparse.Namespace) -> PrepareOptions:
    """Options out of parsed arguments."""
    fields = set(PrepareOptions.__dataclass_fields__)
    values = {name: value for name, value in vars(given).items() if name in fields}
    return PrepareOptions(**values, show_progress=not given.no_progress)
