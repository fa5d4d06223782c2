"""How written files reach the disk: errors that a user can act on, and a name once all is there."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heterps_hpc.dataset.manifest import FileSpec, file_checksum
from heterps_hpc.errors import UserError


def settle(partial: Path, final: Path) -> FileSpec:
    """Make a finished file durable, then give it its name."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    spec = FileSpec(
        file=final.name, num_bytes=partial.stat().st_size, checksum=file_checksum(partial)
    )
    partial.replace(final)
    return spec


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk into something that the user can act on."""
    try:
        yield
    except PermissionError as error:
        raise UserError(
            f"{path}: no permission to write there; choose another output directory"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise UserError(
                f"{path}: the disk is full ({error.strerror}); free some space and run again: "
                "finished shards are kept"
            ) from error
        raise UserError(f"{path}: cannot write it: {error}") from error


class Sink:
    """What h5py needs of a file, in front of a plain unbuffered one.

    It notes the first error, swallows all that comes after it, and the writer asks for the error
    when it can act on it.
    """

    def __init__(self, path: Path) -> None:
        self._file = io.FileIO(path, "w+")
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the first error of a write, if there was one."""
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        """Write all of it, or note why not."""
        view = memoryview(data).cast("B")
        size = len(view)
        if self._error is None:
            try:
                while view:  # a nearly full disk takes part of it first
                    view = view[self._file.write(view) :]
            except OSError as error:
                self._error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the size; extending a file may fail as a write does."""
        if self._error is None:
            try:
                return self._file.truncate(size)
            except OSError as error:
                self._error = error
        return size or 0

    def readinto(self, buffer: Any) -> int:
        """Read; beyond an error there are zeros."""
        count = self._file.readinto(buffer) or 0
        memoryview(buffer).cast("B")[count:] = bytes(len(buffer) - count)
        return len(buffer)

    def read(self, size: int = -1) -> bytes:
        """Read."""
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Place."""
        return self._file.tell()

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
