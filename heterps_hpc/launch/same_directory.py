"""Whether a directory is still the one that it was."""

from __future__ import annotations

import os
from pathlib import Path


class SameDirectory:
    """A directory that is there: deleted or moved, ranks would make another one in its place.

    It is held open, so that no other directory can get its number meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def is_there(self) -> bool:
        """Under its path, and not another one."""
        try:
            return os.path.samestat(os.fstat(self._handle), self._path.stat())
        except OSError:
            return False

    def close(self) -> None:
        """Let go of it."""
        os.close(self._handle)
