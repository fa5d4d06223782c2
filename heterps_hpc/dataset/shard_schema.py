"""The inside of a shard: which HDF5 datasets there are, and how they are chunked.

    /labels  /dense           float32 [rows, width]     one chunk = one block of rows
    /weight  /group           float32, uint64 [rows]
    /slots/NAME/keys          uint64 [rows], or [keys] where a sample has many
    /slots/NAME/lengths       uint32 [rows]             only "many": keys of each sample
    /slots/NAME/starts        int64 [blocks + 1]        only "many": first key of each block
    /slots/NAME/weights       float32 [keys]            only "weighted"
    /ids                      texts [rows]              only where rows have an id
    /chunk_addresses  /chunk_counts                     only uncompressed: see below

Lengths instead of offsets, so that a block is whole chunks: CSR's extra offset at the end of a
block would make every block touch a second chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import hdf5plugin
import numpy as np

from heterps_hpc.dataset.manifest import Compression, Schema

# HDF5 1.10 and later read it, and chunks of a growing column are found without a B-tree.
LIBVER = ("v110", "v110")
# Chunks begin on pages: copying out of the page cache is then at its fastest (see buffer_pool.py).
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Column:
    """One HDF5 dataset of a shard; `per` says what its first axis counts."""

    path: str
    dtype: np.dtype[Any]
    per: Literal["row", "key"]
    width: int | None = None

    def shape(self, length: int) -> tuple[int, ...]:
        """The shape for that many rows or keys."""
        return (length,) if self.width is None else (length, self.width)

    @property
    def slot(self) -> str:
        """The slot that it belongs to."""
        return self.path.split("/")[1]

    @property
    def item_bytes(self) -> int:
        """Bytes of one row or key."""
        return self.dtype.itemsize * (self.width or 1)


def keys_column(slot: str, kind: str) -> Column:
    """Where the keys of a slot are."""
    per: Literal["row", "key"] = "row" if kind == "one" else "key"
    return Column(f"slots/{slot}/keys", np.dtype(np.uint64), per)


def lengths_column(slot: str) -> Column:
    """How many keys each sample has."""
    return Column(f"slots/{slot}/lengths", np.dtype(np.uint32), "row")


def weights_column(slot: str) -> Column:
    """The weight of each key."""
    return Column(f"slots/{slot}/weights", np.dtype(np.float32), "key")


def starts_path(slot: str) -> str:
    """Where the first key of each block is listed."""
    return f"slots/{slot}/starts"


def dense_column(schema: Schema) -> Column:
    """The dense matrix."""
    return Column("dense", np.dtype(np.float32), "row", len(schema.dense_columns))


def labels_column(schema: Schema) -> Column:
    """The matrix of labels."""
    return Column("labels", np.dtype(np.float32), "row", len(schema.labels))


# Uncompressed shards: the place in the file of every chunk, column by column, in the order of
# `columns_of`, and how many chunks each column has.
CHUNK_ADDRESSES = "chunk_addresses"
CHUNK_COUNTS = "chunk_counts"


def chunk_addresses(dataset: Any, block_rows: int) -> list[int]:
    """Where each chunk of an HDF5 dataset lies in the file; 0 if nowhere."""
    addresses = [0] * -(-dataset.shape[0] // block_rows)

    def note(info: Any) -> None:
        addresses[info.chunk_offset[0] // block_rows] = info.byte_offset

    dataset.id.chunk_iter(note)
    return addresses


IDS = "ids"  # not a Column: ranks do not read it, and what is learned does not depend on it

WEIGHT = Column("weight", np.dtype(np.float32), "row")
GROUP = Column("group", np.dtype(np.uint64), "row")


def columns_of(schema: Schema) -> Iterable[Column]:
    """Every column that a shard of this schema has, in the order in which they are hashed."""
    if schema.labels:
        yield labels_column(schema)
    if schema.dense_columns:
        yield dense_column(schema)
    if schema.has_weight:
        yield WEIGHT
    if schema.has_group:
        yield GROUP
    for slot in schema.slots:
        yield keys_column(slot.name, slot.kind)
        if slot.kind == "many":
            yield lengths_column(slot.name)
        if slot.weighted:
            yield weights_column(slot.name)


def filter_options(compression: Compression) -> dict[str, Any]:
    """h5py's arguments for a compression by name; docs/data.md has the figures behind them."""
    if compression == "none":
        return {}
    if compression == "lzf":
        return {"compression": "lzf"}
    # Keys are hashes: their bytes repeat as whole keys only, so shuffling bits or bytes hurts.
    shuffle = hdf5plugin.Blosc.NOSHUFFLE
    return dict(hdf5plugin.Blosc(cname=compression, clevel=1, shuffle=shuffle))
