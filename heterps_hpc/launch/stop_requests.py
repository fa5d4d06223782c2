"""Signals that ask `heterps` to stop: stop means stop, whatever it is doing.

while ranks run         counted: the ranks save and end (twice: they end at once)
at any other moment     StopRequested ends the command: one line and exit code 3
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class StopRequested(BaseException):
    """The user or the system wants us to stop; not an Exception, so that nothing swallows it."""


class _Handlers:
    """Takes over the signals, and gives them back."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            # nohup and background shells have some ignored: they stay so
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread, which then handles the signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        raise NotImplementedError


class StopAtOnce(_Handlers):
    """Ends whatever we do by an exception that names the signal.

    Signals that come later are ignored: nothing may disturb the end of a command, whose exit code
    is known by then.
    """

    def __exit__(self, *_: object) -> None:
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.__exit__()
        raise StopRequested(f"stopped by {signal.Signals(number).name}")


class StopRequests(_Handlers):
    """Counts the signals instead of ending by them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.first = ""

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or signal.Signals(number).name
        self.count += 1
