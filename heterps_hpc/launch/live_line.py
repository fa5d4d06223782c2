"""A line that shows what a command is doing, as long as it does it.

In a terminal one line is drawn again and again below everything else that is printed. Elsewhere
(a pipe, a batch job's log) plain lines are printed: every 1.5 s at first, and never so often that a
long run fills its log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from heterps_hpc import format as fmt
from heterps_hpc.errors import UserError
from heterps_hpc.launch.run_progress import fit_words, read_progress
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

_REFRESHES_PER_SECOND = 2.0
_FIRST_SECONDS = 0.5  # what is done sooner need not be mentioned
_PLAIN_SECONDS = 1.5  # a reader of a log wonders after two
_PLAIN_SHARE = 30.0  # of the time so far: a run of an hour prints a line every two minutes

Describe = Callable[[], Sequence[str]]


class LiveLine:
    """Shows the words of `describe` until the block ends."""

    def __init__(self, describe: Describe, console: Console | None = None) -> None:
        self._describe = describe
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._renderable,
                console=self._console,
                refresh_per_second=_REFRESHES_PER_SECOND,
                transient=True,
            )
            self._live.start()
        else:
            self._end.clear()
            self._thread = threading.Thread(target=self._print_lines, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Something else is printed meanwhile."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def _renderable(self) -> Text:
        # one column is left: a full line would make some terminals wrap
        return Text(fit_words(self._words(), self._console.width - 1), no_wrap=True)

    def _words(self) -> Sequence[str]:
        try:
            return self._describe()
        except (OSError, ValueError, UserError):  # reported where the file is needed
            return ()

    def _print_lines(self) -> None:
        began = time.monotonic()
        pause = _FIRST_SECONDS
        while not self._end.wait(pause):
            words = self._words()
            if words:
                log.info("%s", " · ".join(words))
            pause = max(_PLAIN_SECONDS, (time.monotonic() - began) / _PLAIN_SHARE)


def timed_line(what: str) -> LiveLine:
    """The live line of work that has no steps to count."""
    began = time.monotonic()
    return LiveLine(lambda: (what, fmt.clock(time.monotonic() - began)))


def run_line(run: RunDir) -> LiveLine:
    """The live line of a run directory."""

    def describe() -> Sequence[str]:
        progress = read_progress(run)
        return () if progress is None else progress.words()

    return LiveLine(describe)
