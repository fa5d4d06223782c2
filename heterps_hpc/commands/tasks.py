"""What `heterps` itself works on, before and after its ranks: recorded, and shown meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from heterps_hpc import events
from heterps_hpc.events import TaskBegan, TaskEnded
from heterps_hpc.launch.live_line import run_line
from heterps_hpc.rundir import RunDir

TaskName = Literal["data", "measure", "plan", "trial"]


@dataclass(frozen=True)
class Task:
    """A task that is being worked on."""

    run: RunDir
    name: TaskName

    def part(self, text: str, number: int | None = None, total: int | None = None) -> None:
        """The next part begins."""
        began = TaskBegan(task=self.name, part=text, number=number, total=total)
        events.record(self.run, began)


@contextmanager
def task(run: RunDir, name: TaskName, part: str = "") -> Iterator[Task]:
    """Record how long a task takes, and show that it is at work."""
    began = time.monotonic()
    working = Task(run, name)
    working.part(part)
    try:
        with run_line(run):
            yield working
    finally:
        end = TaskEnded(task=name, seconds=time.monotonic() - began)
        events.record_if_possible(run, end)
