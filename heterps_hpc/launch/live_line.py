"""A line that shows what a command is doing, as long as it does it.

In a terminal one line is drawn again and again below everything else that is printed. Elsewhere
(a pipe, a batch job's log) plain lines are printed: soon when there is something new to say, else
once in a while, and never so often that a long run fills its log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
_FIRST_SECONDS = 0.5  # what is done by then is not mentioned
_PLAIN_SECONDS = 1.5  # the least between two plain lines
_QUIET_SECONDS = 10.0  # the same between two that differ in nothing but time and money
_PLAIN_SHARE = 30.0  # of the time so far: a run of an hour prints a line every two minutes


@dataclass(frozen=True)
class LineText:
    """What to show, and what of it is news: the rest changes all the time."""

    words: Sequence[str] = ()
    news: object = None


Describe = Callable[[], LineText]


class LiveLine:
    """Shows the words of `describe` until the block ends."""

    def __init__(self, describe: Describe, console: Console | None = None) -> None:
        self._describe = describe
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._printed: LineText | None = None

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
        return Text(fit_words(self._status().words, self._console.width - 1), no_wrap=True)

    def _status(self) -> LineText:
        try:
            return self._describe()
        except (OSError, ValueError, UserError):  # reported where the file is needed
            return LineText()

    def _print_lines(self) -> None:
        began = printed = time.monotonic()
        pause = _FIRST_SECONDS
        while not self._end.wait(pause):
            now, status = time.monotonic(), self._status()
            share = (now - began) / _PLAIN_SHARE
            pause = max(_PLAIN_SECONDS, share)
            is_news = self._printed is None or status.news != self._printed.news
            if status.words and (is_news or now - printed >= max(_QUIET_SECONDS, share)):
                log.info("%s", " · ".join(status.words))
                self._printed, printed = status, now


def timed_line(what: str) -> LiveLine:
    """The live line of work that has no steps to count."""
    began = time.monotonic()
    return LiveLine(lambda: LineText((what, fmt.clock(time.monotonic() - began)), what))


def run_line(run: RunDir) -> LiveLine:
    """The live line of a run directory."""

    def describe() -> LineText:
        progress = read_progress(run)
        return LineText() if progress is None else LineText(progress.words(), progress.news)

    return LiveLine(describe)
