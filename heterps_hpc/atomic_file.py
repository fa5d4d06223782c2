"""Files that are whole or not there: write next to the target, flush to disk, rename."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write, flush to disk, rename: readers see the old file or the new one, never half."""
    with naming(path):
        _write(path, text)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors with the name of the file that the user knows; those of a write have none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    # opened with the mode of an ordinary file, so that the kernel applies the umask: asking for it
    # would mean to change it for all threads for a moment
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
