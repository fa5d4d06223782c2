"""Who uses a run directory: one `heterps` at a time, and the ranks that it started.

The kernel frees these locks when a process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from pathlib import Path
from typing import IO, Self

from heterps_hpc.atomic_file import naming, sweep
from heterps_hpc.errors import UserError
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

_SECONDS_FOR_OLD_RANKS = 10.0  # ranks end with their launcher, but not in the same moment


class RunLock:
    """An advisory lock on a run directory, freed by the kernel even if we are killed."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._path = run.lock
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        file = self._open()
        try:
            if not _locked(file, fcntl.LOCK_EX):
                file.seek(0)
                raise UserError(
                    f"{self._path.parent}: another run is using this directory (process "
                    f"{file.read().strip() or 'unknown'}); wait for it, stop it, or choose another "
                    "with --run-dir"
                )
            with naming(self._path):  # first: a killed holder's number may be another's by now
                file.truncate(0)
                file.write(f"{os.getpid()} on {os.uname().nodename}\n")
                file.flush()
            self._wait_for_old_ranks()
            for folder in (self._run.path, self._run.heartbeats):
                sweep(folder)
        except BaseException:
            file.close()
            raise
        self._file = file
        return self

    def _open(self) -> IO[str]:
        try:
            return self._path.open("a+")
        except OSError as error:
            raise UserError(
                f"{self._path}: cannot be locked: {error.strerror}; move it away, or choose "
                "another run directory with --run-dir"
            ) from None

    def _wait_for_old_ranks(self) -> None:
        """Ranks whose launcher was killed may need a moment; two worlds would mix checkpoints."""
        give_up = time.monotonic() + _SECONDS_FOR_OLD_RANKS
        while has_ranks(self._run):
            if time.monotonic() > give_up:
                raise UserError(
                    f"{self._path.parent}: ranks of an earlier start are still using this "
                    "directory; wait for them, `heterps cancel` them, or choose another with "
                    "--run-dir"
                )
            time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.truncate(0)
        self._file.close()


def join(run: RunDir) -> IO[str] | None:
    """A rank's part of the lock: held until the rank has ended, even if its launcher died.

    None where the directory cannot be written.
    """
    try:
        file = run.rank_lock.open("a+")
    except OSError:
        return None
    return file if _locked(file, fcntl.LOCK_SH) else None


def has_ranks(run: RunDir) -> bool:
    """Whether ranks of this run are still there, however they were started."""
    return _is_locked(run.rank_lock)


def holder(run: RunDir) -> str | None:
    """The process that holds the directory, as `PID on HOST`; None if nobody does."""
    if not _is_locked(run.lock):
        return None
    return run.lock.read_text(errors="replace").strip() or "unknown"


def _locked(file: IO[str], kind: int) -> bool:
    """Lock a file, unless somebody else has locked it for longer than a look takes (`_is_locked`).

    Where the file system has no locks (Lustre mounted without `flock`), nothing is kept out.
    """
    for _ in range(20):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        except OSError as error:
            log.info("%s: cannot be locked: %s", file.name, error.strerror)
            return True
        else:
            return True
    return False


def _is_locked(path: Path) -> bool:
    """Whether somebody has locked it; locks it for a moment."""
    try:
        file = path.open("r+")
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
    return False
