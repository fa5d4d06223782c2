"""Live progress: the newest line of a run's metrics, read as the file grows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Metrics = dict[str, Any]
OnProgress = Callable[[Metrics], None]


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


def last_metrics(metrics: Path, tail_bytes: int = 65536) -> Metrics | None:
    """The newest whole record of a metrics file, without reading all of it."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, metrics.stat().st_size - tail_bytes))
            lines = file.read().splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return None
    return next((found for line in reversed(lines) if (found := _parse(line)) is not None), None)


def _parse(line: bytes) -> Metrics | None:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
    return record if isinstance(record, dict) else None
