"""The file under an HDF5 file that is being written: a failed write is kept, not passed on.

When a write fails, on a full disk say, HDF5 cannot close its file any more and brings the whole
process down at exit. So it is never told: this file notes the first error, swallows all that
comes after it, and the writer asks for the error at its own good time.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any


class Sink:
    """What h5py needs of a file, in front of a plain unbuffered one."""

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
