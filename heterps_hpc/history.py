"""History: starts, restarts and ends of a run, one JSON object per line, never rewritten.

Launchers and ranks on several nodes append to the same file, so each event is one `write` of one
short line to a file opened for appending.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from heterps_hpc.rundir import RunDir

Event = dict[str, Any]


def record(run: RunDir, event: str, **facts: Any) -> None:
    """Append one event, with the time and the host."""
    line = json.dumps({"event": event, "time": time.time(), "host": socket.gethostname(), **facts})
    handle = os.open(run.history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(handle, line.encode() + b"\n")
    finally:
        os.close(handle)


def read(run: RunDir) -> list[Event]:
    """All events, oldest first; a line cut short by a full disk or a dead node is passed over."""
    try:
        text = run.history.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    events = []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    return events


def since_last(events: list[Event], *kinds: str) -> list[Event]:
    """The events after the last one of these kinds (all of them if there is none)."""
    for index in range(len(events) - 1, -1, -1):
        if events[index]["event"] in kinds:
            return events[index + 1 :]
    return list(events)


def last(events: list[Event], event: str) -> Event | None:
    """The newest event of that kind."""
    return next((entry for entry in reversed(events) if entry["event"] == event), None)


def num_starts(events: list[Event]) -> int:
    """How often the run was started since the user last told it to start."""
    return sum(entry["event"] == "start" for entry in since_last(events, "launch", "submit"))


def restarts(events: list[Event]) -> int:
    """How often the run was started again by itself."""
    return max(0, num_starts(events) - 1)
