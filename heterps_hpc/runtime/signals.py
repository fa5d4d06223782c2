"""Signals that ask a rank to stop: they only set a flag; training looks at it between batches."""

from __future__ import annotations

import logging
import signal
from types import FrameType, TracebackType
from typing import Any, Self

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopFlag:
    """Whether someone asked this rank to save and stop: Slurm, the launcher or Ctrl-C."""

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = signal.Signals(number)
        # A second Ctrl-C must end us even inside a library that never returns to Python, so it
        # is left to the kernel; the launcher then ends all other ranks.
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
