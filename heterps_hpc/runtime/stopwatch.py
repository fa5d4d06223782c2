"""Seconds of work by name: of the device where it has timed events, else of the host.

A device works on what the host only starts, so that the host's clock would show how long starting
took. Its events are read when they have passed: a stopwatch never makes the host wait by itself.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from dataclasses import dataclass

from heterps_hpc.runtime.device import Device, Mark

_MAX_UNREAD = 4096  # spans; a run may never ask for its seconds


@dataclass(frozen=True)
class _Span:
    name: str
    began: Mark
    ended: Mark

    def seconds(self) -> float:
        return self.began.elapsed_time(self.ended) * 1e-3


class Stopwatch:
    """Adds up seconds by name."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._unread: deque[_Span] = deque()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._adding = threading.Lock()

    def start(self) -> Mark:
        """Where a span begins."""
        return self._device.mark()

    def stop(self, name: str, began: Mark) -> Mark:
        """Where it ends, and another one may begin."""
        ended = self._device.mark()
        self._unread.append(_Span(name, began, ended))
        if len(self._unread) > _MAX_UNREAD:
            self._read()
        return ended

    def add(self, name: str, seconds: float) -> None:
        """Seconds that were measured elsewhere; any thread may call it."""
        with self._adding:
            self._seconds[name] += seconds

    def seconds(self) -> dict[str, float]:
        """All of it; waits for the device to pass the last mark."""
        if self._unread:
            self._unread[-1].ended.synchronize()
        self._read()
        return dict(self._seconds)

    def _read(self) -> None:
        """Read the spans that are over, in their order."""
        while self._unread and self._unread[0].ended.query():
            span = self._unread.popleft()
            self.add(span.name, span.seconds())
