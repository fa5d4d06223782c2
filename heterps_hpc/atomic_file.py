"""Files that are whole or not there: write next to the target, flush to disk, rename."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}")
_STALE_SECONDS = 3600.0  # no write takes so long


def write_atomically(path: Path, text: str, *, durable: bool = True) -> None:
    """Write, flush to disk, rename: readers see the old file or the new one, never half.

    Not `durable`: it need not outlast a crash of the machine, and nobody waits for a busy disk.
    """
    with naming(path):
        _write(path, text, durable)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors with the name of the file that the user knows; those of a write have none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write(path: Path, text: str, durable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    # opened with the mode of an ordinary file, so that the kernel applies the umask: asking for it
    # would mean to change it for all threads for a moment
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sweep(folder: Path) -> None:
    """Remove what writers left that were killed in the middle of it."""
    with suppress(OSError):
        for path in folder.iterdir():
            if _TEMPORARY.fullmatch(path.name) and _is_stale(path):
                path.unlink(missing_ok=True)


def _is_stale(path: Path) -> bool:
    return path.is_file() and time.time() - path.stat().st_mtime > _STALE_SECONDS
