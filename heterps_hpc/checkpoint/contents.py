"""A checkpoint by what it holds, not by files: rows of a partition, a dense tensor, pooled rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from heterps_hpc.checkpoint.background import InTurn
from heterps_hpc.checkpoint.manifest import ArraySpec, Kind, Segment, ShardSpec
from heterps_hpc.checkpoint.shardreader import DamagedCheckpoint, ShardReader
from heterps_hpc.checkpoint.store import Checkpoint
from heterps_hpc.closing import Closing

EXTRA = "extra."  # column prefix of what a table keeps besides its rows
_MAX_OPEN = 64
_ROWS_PER_BLOCK = 16384  # of 16 floats, a megabyte: still in the cache when it is put to use


@dataclass(frozen=True)
class Place:
    """An array and the shard that holds it."""

    shard: ShardSpec
    array: ArraySpec


class Contents(Closing):
    """Finds and reads what a checkpoint holds; opens only the shards that are asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._open: dict[str, ShardReader] = {}
        self._thread = InTurn(1)
        self._by_name: dict[tuple[Kind, str], list[Place]] = {}
        for shard in checkpoint.manifest.shards:
            for array in shard.arrays:
                places = self._by_name.setdefault((array.kind, array.name), [])
                places.append(Place(shard, array))
        self._by_partition: dict[str, dict[int, list[tuple[Place, Segment]]]] = {}

    def names(self, kind: Kind) -> list[str]:
        """The tables, dense tensors or steps that there are."""
        return sorted(name for found, name in self._by_name if found == kind)

    def places(self, kind: Kind, name: str) -> list[Place]:
        """All arrays of that name."""
        return self._by_name.get((kind, name), [])

    def columns(self, table: str, partition: int) -> dict[str, tuple[Place, Segment]]:
        """The columns of a table's partition; all of them lie in one shard."""
        found: dict[str, tuple[Place, Segment]] = {}
        for place, segment in self._partitions(table).get(partition, ()):
            if place.array.column in found:
                raise DamagedCheckpoint(
                    f"{self.checkpoint.path}: partition {partition} of table {table!r} is there "
                    f"twice, in {found[place.array.column][0].shard.file} and {place.shard.file}"
                )
            found[place.array.column] = (place, segment)
        return found

    def _partitions(self, table: str) -> dict[int, list[tuple[Place, Segment]]]:
        """What a table has of each partition; made once: there may be many thousands."""
        found = self._by_partition.get(table)
        if found is None:
            found = self._by_partition[table] = {}
            for place in self.places("table", table):
                for segment in place.array.segments:
                    found.setdefault(segment.partition, []).append((place, segment))
        return found

    def rows(
        self, table: str, partition: int, max_rows: int = _ROWS_PER_BLOCK
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """The rows of a partition, some at a time, as columns by name.

        While some are in use, the next are read and checksummed.
        """
        columns = {
            name: found
            for name, found in self.columns(table, partition).items()
            if not name.startswith(EXTRA)
        }
        counts = {segment.num_rows for _, segment in columns.values()}
        if len(counts) > 1:
            raise DamagedCheckpoint(
                f"{self.checkpoint.path}: the columns of table {table!r}, partition {partition} "
                f"have different numbers of rows: {sorted(counts)}"
            )
        streams = [
            self.reader(place.shard).blocks(place.array, segment, max_rows)
            for place, segment in columns.values()
        ]
        for blocks in self._thread.ahead(zip(*streams, strict=True)):
            yield dict(zip(columns, blocks, strict=True))

    def num_rows(self, table: str, partitions: Iterable[int]) -> int:
        """How many rows these partitions have: keys with vectors, in files that are as large as the
        manifest says. So no memory is made ready for rows that are not there."""
        total = 0
        for partition in partitions:
            columns = self.columns(table, partition)
            if "keys" not in columns:
                raise DamagedCheckpoint(
                    f"{self.checkpoint.path}: partition {partition} of table {table!r} is missing"
                )
            keys, segment = columns["keys"]
            if segment.num_rows == 0:
                continue
            vectors, described = columns.get("vectors", columns["keys"])
            width = self.checkpoint.manifest.tables[table].dim
            if (
                (keys.array.dtype, len(keys.array.shape)) != ("uint64", 1)
                or vectors.array.shape[1:] != (width,)
                or described.num_rows != segment.num_rows
            ):
                raise DamagedCheckpoint(
                    f"{self.checkpoint.path}: partition {partition} of table {table!r} has no "
                    f"vector of {width} numbers for each of its keys"
                )
            for place in (keys, vectors):
                self.reader(place.shard)
            total += segment.num_rows
        return total

    def extra(self, table: str, partition: int) -> dict[str, NDArray[Any]]:
        """What the table keeps of a partition besides its rows."""
        return {
            name.removeprefix(EXTRA): self.reader(place.shard).read(place.array, segment)
            for name, (place, segment) in self.columns(table, partition).items()
            if name.startswith(EXTRA)
        }

    def dense(self, name: str) -> Mapping[str, NDArray[Any]]:
        """A dense tensor (`value`) and its optimizer's state, by column."""
        return {place.array.column: self.whole(place) for place in self.places("dense", name)}

    def dense_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a dense tensor; None if it is not there."""
        values = [p.array.shape for p in self.places("dense", name) if p.array.column == "value"]
        return values[0] if values else None

    def whole(self, place: Place) -> NDArray[Any]:
        """An array that is one segment."""
        if len(place.array.segments) != 1:
            raise DamagedCheckpoint(f"{place.shard.file}: {place.array.label} is in pieces")
        return self.reader(place.shard).read(place.array, place.array.segments[0])

    def reader(self, shard: ShardSpec) -> ShardReader:
        """The open file of a shard."""
        reader = self._open.pop(shard.file, None)
        if reader is None:
            reader = ShardReader(self.checkpoint.path / shard.file, shard)
        self._open[shard.file] = reader  # the last is the most recently used
        while len(self._open) > _MAX_OPEN:
            self._open.pop(next(iter(self._open))).close()
        return reader

    def close(self) -> None:
        """Close all files."""
        self._thread.stop()
        while self._open:
            self._open.popitem()[1].close()
