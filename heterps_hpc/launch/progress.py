"""Live progress: the newest lines of a run's metrics, read as the file grows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

Metrics = dict[str, Any]
OnProgress = Callable[[Metrics], None]

_BLOCK_BYTES = 65536
_KINDS = ("train", "evaluation")
_NUMBERS = ("loss", "auc", "log_loss", "samples_per_second")  # left out where they are none


class Progress:
    """Reads what was appended since the last look and passes whole new records on."""

    def __init__(self, metrics: Path, on_progress: OnProgress) -> None:
        self._path = metrics
        self._on_progress = on_progress
        self._offset = metrics.stat().st_size if metrics.exists() else 0

    def poll(self) -> None:
        """Look once; cheap when nothing has changed."""
        for metrics in self._fresh():
            self._on_progress(metrics)

    def _fresh(self) -> list[Metrics]:
        try:
            size = self._path.stat().st_size
            if size < self._offset:  # a resumed run drops the lines after its checkpoint
                self._offset = 0
            if size == self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except (FileNotFoundError, IsADirectoryError):
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [record for line in whole.splitlines() if (record := _parse(line)) is not None]


def newest_metrics(metrics: Path) -> dict[str, Metrics]:
    """The newest whole record of each kind: `train` and `evaluation`, which may be long ago."""
    found = {}
    try:
        with metrics.open("rb") as file:
            for kind in _KINDS:
                record = _newest(file, kind)
                if record is not None:
                    found[kind] = record
    except (FileNotFoundError, IsADirectoryError):
        pass
    return found


def _newest(file: IO[bytes], kind: str) -> Metrics | None:
    mark = f'"{kind}"'.encode()
    for lines in _blocks_backwards(file):
        if mark not in lines:  # quick: a long file is looked through several times a second
            continue
        for line in reversed(lines.splitlines()):
            record = _parse(line) if mark in line else None
            if record is not None and record.get("kind") == kind:
                return record
    return None


def _blocks_backwards(file: IO[bytes]) -> Iterator[bytes]:
    """Whole lines of a file, some at a time, the last ones first."""
    end, rest = file.seek(0, os.SEEK_END), b""
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        block = file.read(end - begin) + rest
        cut = block.find(b"\n") + 1 if begin else 0  # a line that began earlier
        rest = block[:cut] if cut or not begin else block
        yield block[len(rest) :]
        end = begin


def _parse(line: bytes) -> Metrics | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    kept = {name: value for name, value in record.items() if name in _NUMBERS and _shown(value)}
    return {name: value for name, value in record.items() if name not in _NUMBERS} | kept


def _shown(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300
