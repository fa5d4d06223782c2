"""Live progress: the newest line of a run's metrics, read as the file grows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Metrics = dict[str, Any]
OnProgress = Callable[[Metrics], None]

_TAIL_BYTES = 16384
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
    """The newest whole record of each kind: `train` and `evaluation`."""
    return {str(record.get("kind")): record for record in _tail(metrics)}


def _tail(metrics: Path) -> list[Metrics]:
    """The newest whole records, oldest first, without reading all of a long file."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, metrics.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return []
    return [record for line in lines if (record := _parse(line)) is not None]


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
