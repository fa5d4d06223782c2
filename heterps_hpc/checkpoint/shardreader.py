"""Reads arrays of a shard by the manifest's offsets; nothing is handed out as good unchecked."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from heterps_hpc.checkpoint.manifest import ArraySpec, Segment, ShardSpec
from heterps_hpc.checkpoint.shardwriter import structure_checksum
from heterps_hpc.closing import Closing
from heterps_hpc.errors import UserError

_REMEDY = "continue from an earlier checkpoint (`heterps checkpoint ls RUN`)"


class DamagedCheckpoint(UserError):
    """A file of a checkpoint is not what the manifest says."""


class ShardReader(Closing):
    """One open shard. Its size and structure are checked at once, each segment as it is read."""

    def __init__(self, path: Path, spec: ShardSpec) -> None:
        self.path = path
        self.spec = spec
        try:
            # a pipe in its place would wait for somebody who writes
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise DamagedCheckpoint(
                f"{path}: this shard is missing, but the manifest lists it; either the file was "
                f"removed or the manifest belongs to another run: put it back, or {_REMEDY}"
            ) from None
        except OSError as error:
            raise DamagedCheckpoint(f"{path}: cannot open the shard: {error.strerror}") from None
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        found_file = os.fstat(self._descriptor)
        if not stat.S_ISREG(found_file.st_mode):
            raise DamagedCheckpoint(f"{self.path}: is no file, but a shard should be: {_REMEDY}")
        size = found_file.st_size
        if size != self.spec.num_bytes:
            raise DamagedCheckpoint(
                f"{self.path}: has {size} bytes, the manifest says {self.spec.num_bytes}; it was "
                f"cut short or replaced: {_REMEDY}"
            )
        found = structure_checksum(self._descriptor, self.spec)
        if found != self.spec.structure:
            raise DamagedCheckpoint(
                f"{self.path}: the file's structure does not match its checksum ({found}, the "
                f"manifest says {self.spec.structure}); it is damaged or of another run: {_REMEDY}"
            )

    def blocks(self, array: ArraySpec, segment: Segment, max_rows: int) -> Iterator[NDArray[Any]]:
        """The rows of a segment, some at a time; after the last one its checksum is compared."""
        digest = xxhash.xxh3_64()
        last = segment.first_row + segment.num_rows
        for first in range(segment.first_row, last, max_rows):
            count = min(max_rows, last - first)
            rows = np.empty((count, *array.shape[1:]), array.dtype)
            if rows.size:
                view = rows.reshape(-1).view(np.uint8).data
                self._pread(view, array.offset + first * array.row_bytes)
                digest.update(view)
            yield rows
        if digest.hexdigest() != segment.checksum:
            raise DamagedCheckpoint(
                f"{self.path}: {array.label}, partition {segment.partition}: the bytes do not "
                f"match their checksum ({segment.checksum}); the file is damaged: {_REMEDY}"
            )

    def read(self, array: ArraySpec, segment: Segment) -> NDArray[Any]:
        """All rows of a segment, checked."""
        pieces = list(self.blocks(array, segment, max(1, segment.num_rows)))
        return pieces[0] if pieces else np.empty((0, *array.shape[1:]), array.dtype)

    def _pread(self, view: memoryview, offset: int) -> None:
        while view:
            count = os.preadv(self._descriptor, [view], offset)
            if count == 0:
                raise DamagedCheckpoint(f"{self.path}: ends at byte {offset}, while being read")
            view, offset = view[count:], offset + count

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
