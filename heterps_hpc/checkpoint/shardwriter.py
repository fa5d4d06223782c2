"""Writes one shard: HDF5 makes the skeleton, then plain writes fill in the arrays.

Going past the HDF5 library for the bytes matters twice: h5py's lock is one per process, so a long
write inside it would hold up the thread that reads training data; and a plain pwrite of a block
that is just being checksummed is as fast as copying a file.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import h5py
import numpy as np
import xxhash
from numpy.typing import NDArray

from heterps_hpc.checkpoint.background import InTurn
from heterps_hpc.checkpoint.manifest import FORMAT, VERSION, ArraySpec, Kind, Segment, ShardSpec

_ALIGNED_BYTES = 4096
_MOST_WAITING = 4  # about one block of a table's columns


@dataclass
class PlannedArray:
    """An array before it is written: its size must be known, its content comes in pieces."""

    kind: Kind
    name: str
    column: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    partitions: tuple[int, ...] | None = None
    offset: int = 0
    rows_written: int = 0
    segments: list[Segment] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Where HDF5 tools find it."""
        words = (self.kind, self.name, self.column)
        return "/".join(quote(word, safe=" ,:[]()=") for word in words)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def spec(self) -> ArraySpec:
        """What the manifest says of it."""
        return ArraySpec.model_validate(
            {
                "kind": self.kind,
                "name": self.name,
                "column": self.column,
                "dtype": self.dtype.name,
                "shape": self.shape,
                "offset": self.offset,
                "segments": self.segments,
                "partitions": self.partitions,
            }
        )


class ShardWriter:
    """One shard under a temporary name; `close` makes it durable and gives it its own."""

    def __init__(
        self, path: Path, rank: int, arrays: Iterable[PlannedArray], attributes: dict[str, Any]
    ) -> None:
        self.path = path
        self._rank = rank
        self._temporary = path.with_name(f".{path.name}.part")
        self.arrays = list(arrays)
        self._hashes: dict[int, tuple[int, int, xxhash.xxh3_64]] = {}
        self._temporary.unlink(missing_ok=True)
        self._descriptor = -1
        self._writes = InTurn(_MOST_WAITING)
        try:
            with _full_disk_as_error(self._temporary):
                self._make_skeleton(
                    {"format": FORMAT, "version": VERSION, "rank": rank, **attributes}
                )
            self._descriptor = os.open(self._temporary, os.O_RDWR | os.O_CLOEXEC)
        except BaseException:
            self.abandon()
            raise

    def _make_skeleton(self, attributes: dict[str, Any]) -> None:
        create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        create.set_layout(h5py.h5d.CONTIGUOUS)
        create.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        create.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        links.set_create_intermediate_group(True)
        with h5py.File(
            self._temporary,
            "w",
            libver=("v110", "v110"),
            locking=False,
            alignment_threshold=_ALIGNED_BYTES,
            alignment_interval=_ALIGNED_BYTES,
        ) as file:
            file.attrs.update(attributes)
            for array in self.arrays:
                space = h5py.h5s.create_simple(array.shape)
                kind = h5py.h5t.py_create(array.dtype)
                path = array.path.encode()
                made = h5py.h5d.create(file.id, path, kind, space, dcpl=create, lcpl=links)
                if np.prod(array.shape, dtype=np.int64):
                    array.offset = made.get_offset()

    def write(self, array: PlannedArray, partition: int, rows: NDArray[Any]) -> None:
        """Append rows of a partition; the rows of one partition may come in several pieces.

        They are checksummed at once and written by a thread while the caller fetches more, so
        they must not be changed any more; an error may be that of an earlier call.
        """
        expected = (array.dtype, array.shape[1:])
        if (rows.dtype, rows.shape[1:]) != expected:
            raise ValueError(f"{array.path}: got {rows.dtype}{rows.shape}, planned {expected}")
        if array.rows_written + len(rows) > array.shape[0]:
            raise ValueError(f"{array.path}: more than the {array.shape[0]} rows planned")
        current = self._hashes.get(id(array))
        if current is None or current[0] != partition:
            self._end_segment(array)
            current = (partition, array.rows_written, xxhash.xxh3_64())
            self._hashes[id(array)] = current
        if rows.size:
            view = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
            current[2].update(view)
            offset = array.offset + array.rows_written * array.row_bytes
            self._writes.put(self._pwrite, view, offset)
        array.rows_written += len(rows)

    def _end_segment(self, array: PlannedArray) -> None:
        current = self._hashes.pop(id(array), None)
        if current is not None:
            partition, first, digest = current
            count = array.rows_written - first
            array.segments.append(Segment(partition, first, count, digest.hexdigest()))

    def _pwrite(self, view: memoryview, offset: int) -> None:
        while view:
            count = os.pwrite(self._descriptor, view, offset)
            view, offset = view[count:], offset + count

    def close(self) -> ShardSpec:
        """Check that all is written, put it on the disk, and give the file its name."""
        for array in self.arrays:
            self._end_segment(array)
            if array.rows_written != array.shape[0]:
                raise ValueError(f"{array.path}: {array.rows_written} of {array.shape[0]} rows")
        self._writes.finish()
        specs = tuple(array.spec() for array in self.arrays)
        fields = {
            "file": self.path.name,
            "rank": self._rank,
            "host": socket.gethostname(),
            "num_bytes": os.fstat(self._descriptor).st_size,
            "structure": "0" * 16,
            "arrays": specs,
        }
        spec = ShardSpec.model_validate(fields)
        spec = spec.model_copy(update={"structure": structure_checksum(self._descriptor, spec)})
        os.fsync(self._descriptor)
        self._writes.stop()
        os.close(self._descriptor)
        self._descriptor = -1
        self._temporary.replace(self.path)
        sync_directory(self.path.parent)
        return spec

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._writes.stop()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            self.abandon()


@contextmanager
def _full_disk_as_error(path: Path) -> Iterator[None]:
    """HDF5 tells only in its text why a flush or a close has failed."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        found = re.search(r"errno = (\d+)", str(error))
        if found is None:
            raise
        number = int(found.group(1))
        raise OSError(number, os.strerror(number), str(path)) from error


def structure_checksum(descriptor: int, spec: ShardSpec) -> str:
    """The checksum of everything in the file that is not an array."""
    digest = xxhash.xxh3_64()
    for first, last in spec.gaps():
        while first < last:
            piece = os.pread(descriptor, min(last - first, 1 << 20), first)
            if not piece:
                break
            digest.update(piece)
            first += len(piece)
    return digest.hexdigest()


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
