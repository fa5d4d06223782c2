"""How the benchmark asks the job that holds all nodes to run something: files in its folder.

A process on a fifth of a core takes half a minute to start and to end, so one job does both once
for everything that is measured on a cluster.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from heterps_hpc.atomic_file import write_atomically


@dataclass(frozen=True)
class Requests:
    """The numbered requests of one job; each is answered by a file of its own."""

    folder: Path

    def _file(self, number: int, what: str) -> Path:
        return self.folder / f"request-{number}.{what}"

    def ask(self, number: int, program: str, run: Path, layout: Path) -> None:
        """Run a rank program on the ranks of a layout, with a run's folder."""
        request = {"program": program, "run": str(run), "layout": str(layout)}
        write_atomically(self._file(number, "json"), json.dumps(request))

    def ask_to_end(self, number: int) -> None:
        """The last request."""
        write_atomically(self._file(number, "json"), "null")

    def is_there(self, number: int) -> bool:
        return self._file(number, "json").exists()

    def read(self, number: int) -> dict[str, str] | None:
        """A request; None is the last one."""
        found: dict[str, str] | None = json.loads(self._file(number, "json").read_text())
        return found

    def answer(self, number: int) -> None:
        """It is done."""
        write_atomically(self._file(number, "done"), "")

    def is_done(self, number: int) -> bool:
        return self._file(number, "done").exists()
