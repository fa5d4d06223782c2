"""Reads ranges of columns out of one shard: uncompressed chunks by plain pread, others by HDF5.

HDF5 knows where each chunk lies in the file; for unfiltered chunks that is all a reader needs, and
a pread straight into the destination costs a fraction of a call of the HDF5 library. Writers put
the chunks of a block one behind the other, column by column, so that a rank which selects many
columns of a block needs few reads.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import hdf5plugin  # noqa: F401  (registers the filters with HDF5)
import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset import shard_schema
from heterps_hpc.dataset.manifest import DatasetManifest, DatasetShard
from heterps_hpc.dataset.shard_schema import Column
from heterps_hpc.errors import UserError

_MAX_BUFFERS = 512  # of one read; systems allow 1024

_open_files: weakref.WeakSet[ShardFile] = weakref.WeakSet()


class Group(NamedTuple):
    """Columns of one block that one read can get: the first in the order, one past the last, and
    where they lie in the file."""

    first: int
    last: int
    address: int
    num_bytes: int


class Blocks:
    """The places of the blocks of a shard's columns of one item per row."""

    def __init__(
        self, columns: Sequence[Column], addresses: Mapping[str, list[int]], block_rows: int
    ) -> None:
        by_row = [column for column in columns if column.per == "row"]
        there = [place for place, column in enumerate(by_row) if addresses.get(column.path)]
        # which of the columns are here, in the order of the file
        self.order = sorted(there, key=lambda place: addresses[by_row[place].path][0])
        chosen = [by_row[place] for place in self.order]
        self._groups: list[Group] = []
        self._ends: list[int] = [0]
        if chosen:
            sizes = [column.item_bytes * block_rows for column in chosen]
            places = np.array([addresses[column.path] for column in chosen], np.int64)
            self._find(places, np.array(sizes, np.int64))

    def _find(self, places: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Of all blocks at once: one by one takes longer than reading them."""
        begins = np.ones(places.shape, bool)
        begins[1:] = np.diff(places, axis=0) != sizes[:-1, None]
        begins[::_MAX_BUFFERS] = True
        blocks, firsts = np.nonzero(begins.T)
        lasts = np.append(firsts[1:], 0)
        lasts[lasts == 0] = len(sizes)  # the next group begins another block
        size_before = np.append(0, np.cumsum(sizes))
        fields = (
            firsts,
            lasts,
            places[firsts, blocks],
            size_before[lasts] - size_before[firsts],
        )
        self._groups = list(
            map(Group._make, zip(*(field.tolist() for field in fields), strict=True))
        )
        self._ends += np.cumsum(begins.sum(axis=0)).tolist()

    def groups(self, block: int) -> list[Group]:
        """The columns of a block, by what one read can get."""
        return self._groups[self._ends[block] : self._ends[block + 1]]


class ShardFile:
    """One open shard, read only, without locks: any number of processes may do the same."""

    def __init__(
        self,
        path: Path,
        spec: DatasetShard,
        columns: Sequence[Column],
        manifest: DatasetManifest,
    ) -> None:
        self.path = path
        self.block_rows = manifest.block_rows
        self._chunks: dict[str, list[int]] = {}
        self._datasets: dict[str, Any] = {}
        self.starts: dict[str, NDArray[np.int64]] = {}
        self._descriptor = -1
        self._file: Any = self._open()
        try:
            with self._hdf5_errors():
                self._check_header(spec)
                self._listed_addresses = self._read_addresses(manifest)
                for column in columns:
                    self._add(column, spec.num_rows)
            self._by_row = [column for column in columns if column.per == "row"]
            self._blocks = Blocks(columns, self._chunks, self.block_rows)
            if not self._datasets:
                self._file.close()
                self._file = None
            else:
                self._hdf5_descriptor: int = self._file.id.get_vfd_handle()
        except BaseException:
            self.close()
            raise
        _open_files.add(self)

    def _open(self) -> Any:
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            self._num_bytes = os.fstat(self._descriptor).st_size
            with self._hdf5_errors():
                return h5py.File(self.path, "r", locking=False)
        except OSError as error:
            raise UserError(f"{self.path}: cannot open the shard: {error}") from error
        except UserError:
            self.close()
            raise

    @contextmanager
    def _hdf5_errors(self) -> Iterator[None]:
        """A damaged file fails HDF5 in many ways; all of them mean the same to the user."""
        try:
            yield
        except UserError:
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise UserError(
                f"{self.path}: the shard is damaged: {error}; compare the dataset with its "
                f"checksums (`heterps data info {self.path.parent} --verify`), prepare it again"
            ) from error

    def _check_header(self, spec: DatasetShard) -> None:
        for name, expected in (("num_rows", spec.num_rows), ("block_rows", self.block_rows)):
            # numbers only: strings live in a heap, and HDF5 can loop forever in a damaged one
            attribute = h5py.h5a.open(self._file.id, name.encode())
            is_number = attribute.get_type().get_class() == h5py.h5t.INTEGER
            found = self._file.attrs[name] if is_number else None
            if found != expected:
                raise UserError(
                    f"{self.path}: {name} is {found}, but the manifest says {expected}; "
                    "the shard is from another dataset: prepare it again"
                )

    def _add(self, column: Column, num_rows: int) -> None:
        dataset = self._find(column, num_rows)
        if column.per == "key":
            self.starts[column.slot] = self._read_starts(column.slot, num_rows, dataset.shape[0])
        if dataset.get_create_plist().get_nfilters():
            self._datasets[column.path] = h5py.Dataset(dataset)
        else:
            self._chunks[column.path] = self._addresses(dataset, column)

    def _find(self, column: Column, num_rows: int) -> Any:
        """By h5py's lower level: its Dataset takes twice as long to open, and there are many."""
        try:
            dataset = h5py.h5d.open(self._file.id, column.path.encode())
        except KeyError:
            dataset, found, length_is_wrong = None, None, False
        else:
            made = dataset.get_create_plist()
            is_chunked = made.get_layout() == h5py.h5d.CHUNKED
            chunk = made.get_chunk() if is_chunked else None
            found = (dataset.dtype, dataset.shape[1:], chunk)
            length_is_wrong = column.per == "row" and dataset.shape[0] != num_rows
        wanted = (column.dtype, column.shape(0)[1:], column.shape(self.block_rows))
        if found != wanted or length_is_wrong:
            raise UserError(
                f"{self.path}: column {column.path!r} is {found}, but the manifest says {wanted} "
                f"with {num_rows} rows; the shard is from another dataset: prepare it again"
            )
        return dataset

    def _read_starts(self, slot: str, num_rows: int, num_keys: int) -> NDArray[np.int64]:
        stored = self._file[shard_schema.starts_path(slot)]
        if stored.shape != (-(-num_rows // self.block_rows) + 1,):
            raise ValueError(f"the starts of slot {slot!r} have the shape {stored.shape}")
        starts: NDArray[np.int64] = stored[()].astype(np.int64)
        if starts[0] != 0 or starts[-1] != num_keys or bool((np.diff(starts) < 0).any()):
            raise ValueError(f"the starts of slot {slot!r} do not rise from 0 to {num_keys}")
        return starts

    def _read_addresses(self, manifest: DatasetManifest) -> dict[str, list[int]]:
        """The addresses that the shard lists, if it does."""
        if shard_schema.CHUNK_COUNTS not in self._file:
            return {}
        paths = [column.path for column in shard_schema.columns_of(manifest)]
        ends = np.cumsum(self._file[shard_schema.CHUNK_COUNTS][()]).tolist()
        if len(paths) != len(ends):
            raise UserError(
                f"{self.path}: the shard has {len(ends)} columns, the manifest lists {len(paths)}; "
                "it belongs to another dataset, or was edited: prepare the data again"
            )
        listed = self._file[shard_schema.CHUNK_ADDRESSES][()].tolist()
        firsts = [0, *ends[:-1]]
        places = zip(paths, firsts, ends, strict=True)
        return {path: listed[first:end] for path, first, end in places}

    def _addresses(self, dataset: Any, column: Column) -> list[int]:
        """Where each chunk lies in the file."""
        count = -(-dataset.shape[0] // self.block_rows)
        addresses = self._listed_addresses.get(column.path)
        if addresses is None:
            addresses = shard_schema.chunk_addresses(h5py.Dataset(dataset), self.block_rows)
        if len(addresses) != count:
            raise ValueError(f"column {column.path!r}: {len(addresses)} addresses, {count} chunks")
        if count and dataset.get_chunk_info(0).byte_offset != addresses[0]:
            raise ValueError(f"column {column.path!r} does not lie where it should")
        end = self._num_bytes - self.block_rows * column.item_bytes
        if addresses and not 0 < min(addresses) <= max(addresses) <= end:
            raise ValueError(f"chunks of column {column.path!r} lie outside of the file")
        return addresses

    def read(self, column: Column, first: int, last: int, out: NDArray[Any]) -> None:
        """Items first .. last - 1 of a column into `out`, which has just that shape."""
        if first == last:
            return
        addresses = self._chunks.get(column.path)
        if addresses is None:
            with self._hdf5_errors():
                self._datasets[column.path].read_direct(out, np.s_[first:last])
            return
        size, step = column.item_bytes, self.block_rows
        if first % step == 0 and last - first <= step:  # one chunk, as a shuffled order has it
            self._pread(out, (last - first) * size, addresses[first // step])
            return
        view = out.reshape(-1).view(np.uint8).data
        chunk_bytes = step * size
        done = 0
        while first < last:
            chunk, within = divmod(first, step)
            address = addresses[chunk]
            end = chunk + 1
            while end * step < last and addresses[end] == address + (end - chunk) * chunk_bytes:
                end += 1  # neighbours in the file too: one read for all of them
            count = min(last, end * step) - first
            part = view[done : done + count * size]
            self._pread(part, count * size, address + within * size)
            done += count * size
            first += count

    def read_rows(self, first: int, last: int, outs: Callable[[slice], list[Any]]) -> None:
        """Rows first .. last - 1 of all columns of one item per row; first begins a block.

        `outs` gives the places of those columns, in their order, for some of these rows.
        """
        step = self.block_rows
        order = self._blocks.order
        whole = first + (last - first) // step * step if order else first
        for low in range(first, whole, step):
            places = outs(slice(low - first, low - first + step))
            buffers = [places[column] for column in order]
            for start, end, address, num_bytes in self._blocks.groups(low // step):
                self._preadv(buffers[start:end], num_bytes, address)
        if len(order) < len(self._by_row):  # compressed ones
            places = outs(slice(0, last - first))
            for place in sorted(set(range(len(places))) - set(order)):
                self.read(self._by_row[place], first, last, places[place])
        if whole < last:  # a shard's last block: short, with padding behind each column
            places = outs(slice(whole - first, last - first))
            for place in order:
                self.read(self._by_row[place], whole, last, places[place])

    def _preadv(self, outs: list[Any], num_bytes: int, offset: int) -> None:
        if os.preadv(self._descriptor, outs, offset) == num_bytes:
            return
        for out in outs:
            self._pread(out, out.nbytes, offset)
            offset += out.nbytes

    def _pread(self, out: Any, num_bytes: int, offset: int) -> None:
        count = os.preadv(self._descriptor, [out], offset)
        while count < num_bytes:  # rare: a signal, or a disk that reads less at once
            view = memoryview(out).cast("B")[count:num_bytes]
            more = os.preadv(self._descriptor, [view], offset + count)
            if more == 0:
                raise UserError(f"{self.path}: ends early; it was cut off while being read")
            count += more

    def abandon(self) -> None:
        """Drop a file that belongs to the process which forked this one."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._file is not None:
            # HDF5 will close its descriptor one day: leave it one that does no harm
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            os.dup2(nothing, self._hdf5_descriptor, inheritable=False)
            os.close(nothing)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if getattr(self, "_file", None) is not None:
            self._file.close()
            self._file = None


def _drop_parents_files() -> None:
    """In the child of a fork: drop the parent's files."""
    for shard in list(_open_files):
        shard.abandon()
    _open_files.clear()


os.register_at_fork(after_in_child=_drop_parents_files)
