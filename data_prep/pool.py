"""Runs tasks in this process or in several, with a progress bar, and stops at the first error."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from heterps_hpc import format as fmt
from heterps_hpc.errors import UserError

if TYPE_CHECKING:
    from data_prep.options import PrepareOptions
    from data_prep.prepare import Preparation
    from data_prep.source import ReadTask

Result = TypeVar("Result")

# spawn: a fork would copy the locks of libraries that have threads, in whatever state they are
_CONTEXT = multiprocessing.get_context("spawn")
_SAFE_PATH = "PYTHONSAFEPATH"
_REFRESH_SECONDS = 0.25
_FIRST_SECONDS = 1.0
_PLAIN_SECONDS = 1.5


@contextmanager
def _without_working_directory() -> Iterator[None]:
    """Processes that are started take no `pickle.py` or `copy.py` of the user's for Python's."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


class Meter:
    """What has been done so far, counted by all processes together."""

    def __init__(self, total_bytes: int, label: str, num_bad: int = 0) -> None:
        self.total_bytes = total_bytes
        self.label = label
        with _without_working_directory():  # starts a process that looks after them
            self._rows = _CONTEXT.Value("q", 0)
            self._bytes = _CONTEXT.Value("q", 0)
            self._bad = _CONTEXT.Value("q", num_bad)

    def add(self, rows: int, num_bytes: int) -> None:
        """Rows written, and bytes of input used up."""
        with self._rows.get_lock():
            self._rows.value += rows
        with self._bytes.get_lock():
            self._bytes.value += num_bytes

    def add_bad(self, count: int) -> int:
        """Count bad rows; returns how many there are by now."""
        with self._bad.get_lock():
            self._bad.value += count
            return int(self._bad.value)

    def read(self) -> tuple[int, int]:
        """Rows and bytes."""
        return int(self._rows.value), int(self._bytes.value)


class _Worker:
    """What a worker process was started with; set once, by the pool."""

    preparation: Any = None
    meter: Any = None


def _start_worker(preparation: Any, meter: Meter) -> None:
    _Worker.preparation, _Worker.meter = preparation, meter


def _work(function: Callable[..., Result], task: Any) -> Result:
    return function(_Worker.preparation, task, _Worker.meter)


def run_tasks(
    function: Callable[[Preparation, ReadTask, Meter], Result],
    preparation: Preparation,
    tasks: list[ReadTask],
    options: PrepareOptions,
    meter: Meter,
) -> Iterator[Result]:
    """The results of all tasks, as they come."""
    with _progress(meter, options.show_progress) as refresh:
        if options.processes == 1 or len(tasks) < 2:
            shown = _Shown(meter, refresh)
            for task in tasks:
                yield function(preparation, task, shown)
            return
        count = min(options.processes, len(tasks))
        with ProcessPoolExecutor(count, _CONTEXT, _start_worker, (preparation, meter)) as pool:
            with _without_working_directory():
                pending: set[Future[Result]] = {pool.submit(_work, function, it) for it in tasks}
            try:
                while pending:
                    done, pending = wait(pending, _REFRESH_SECONDS, FIRST_COMPLETED)
                    refresh()
                    for future in done:
                        yield future.result()
            except BrokenProcessPool:
                raise UserError(
                    "a worker process died, killed or out of memory; run again to continue, "
                    "perhaps with fewer --processes"
                ) from None
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


class _Shown(Meter):
    """The same meter, which also moves the bar: for work in this very process."""

    def __init__(self, meter: Meter, refresh: Callable[[], None]) -> None:
        self.__dict__.update(vars(meter))
        self._refresh = refresh
        self._last = 0.0

    def add(self, rows: int, num_bytes: int) -> None:
        """Count, and show now and then."""
        super().add(rows, num_bytes)
        now = time.monotonic()
        if now - self._last > _REFRESH_SECONDS:
            self._last = now
            self._refresh()


class _PlainLines:
    """Progress in a pipe or a log: a line soon, then at growing intervals."""

    def __init__(self, meter: Meter, console: Console) -> None:
        self._meter, self._console = meter, console
        self._began = time.monotonic()
        self._next = _FIRST_SECONDS

    def refresh(self) -> None:
        """Print a line if it is time for one."""
        seconds = time.monotonic() - self._began
        if seconds < self._next:
            return
        self._next = seconds + max(_PLAIN_SECONDS, seconds / 30)
        rows, num_bytes = self._meter.read()
        share = min(1.0, num_bytes / max(self._meter.total_bytes, 1))
        self._console.print(
            f"{self._meter.label} · {fmt.percent(share, 0)} · {fmt.plural(rows, 'row')} · "
            f"{fmt.rate(rows / seconds)} rows/s · {fmt.clock(seconds)}"
        )


@contextmanager
def _progress(meter: Meter, show: bool) -> Iterator[Callable[[], None]]:
    if not show:
        yield lambda: None
        return
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if not console.is_terminal:
        yield _PlainLines(meter, console).refresh
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rows]:,} rows, {task.fields[speed]:,} rows/s"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
    started = time.monotonic()
    shown = bar.add_task(meter.label, total=meter.total_bytes, rows=0, speed=0)

    def refresh() -> None:
        rows, num_bytes = meter.read()
        speed = round(rows / max(time.monotonic() - started, 1e-9))
        bar.update(shown, completed=num_bytes, rows=rows, speed=speed)

    with bar:
        yield refresh
        refresh()
        # all is done, though bytes may have been counted otherwise: by columns, or in another run
        bar.update(shown, completed=meter.total_bytes)
