"""The table as Python sees it: a thin, typed layer over the C++ core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.core import _core
from heterps_hpc.core.config import TableConfig

Keys = NDArray[np.uint64]
Floats = NDArray[Any]  # float32 or float64, as the table's dtype says
Pulled = _core.Pulled


@dataclass(frozen=True)
class Rows:
    """Some rows of one partition as flat arrays, out of a snapshot or into a table."""

    keys: Keys
    vectors: Floats  # [rows, dim]
    state: Floats  # [rows, state_dim]
    counters: Mapping[str, NDArray[Any]]  # step, show, click: those that the table keeps

    def __len__(self) -> int:
        return len(self.keys)


class Snapshot:
    """A table as it was at one moment; another thread may read it while training continues."""

    def __init__(self, core: _core.Snapshot, partitions: Sequence[int]) -> None:
        self._core = core
        self._partitions = tuple(partitions)

    def partitions(self) -> tuple[int, ...]:
        return self._partitions

    @property
    def step(self) -> int:
        """The step of the last push before the snapshot."""
        return self._core.step

    def num_rows(self, partition: int) -> int:
        return self._core.num_rows(partition)

    def read(self, partition: int, max_rows: int = 65536, since: int = 0) -> Iterator[Rows]:
        """The rows of a partition, max_rows at a time; with since, those changed since a step."""
        cursor = self._core.open(partition, since)
        while (part := self._core.read(cursor, max_rows)) is not None:
            n, keys, vectors, state, counters = part
            yield Rows(keys[:n], vectors[:n], state[:n], {k: v[:n] for k, v in counters.items()})

    def extra(self, partition: int) -> dict[str, NDArray[Any]]:
        """What else must be kept of a partition: the clock, and counts of keys without rows."""
        return self._core.extra(partition)

    def release(self, partition: int) -> None:
        """The partition was read: its old blocks are no longer kept."""
        self._core.release(partition)

    def preserved_bytes(self) -> int:
        """Memory held by blocks that training has changed since."""
        return self._core.preserved_bytes()

    def close(self) -> None:
        self._core.close()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Table:
    """A shard of a table: the rows of some of its partitions, or of all."""

    def __init__(
        self,
        config: TableConfig,
        partitions: Sequence[int] | None = None,
        *,
        isa: Literal["auto", "baseline", "avx2"] = "auto",
    ) -> None:
        held = range(config.num_partitions) if partitions is None else partitions
        wrong = [p for p in held if not 0 <= p < config.num_partitions]
        if wrong or len(set(held)) != len(held):
            raise ValueError(
                f"table {config.name!r}: partitions must be distinct and below "
                f"{config.num_partitions}, got {wrong or list(held)}"
            )
        self.config = config
        self._core = _core.Table(config.to_core(), sorted(held), isa)

    def pull(
        self,
        keys: Keys,
        offsets: NDArray[np.int64] | None = None,
        weights: Floats | None = None,
        pooling: Literal["sum", "mean"] = "sum",
        *,
        out: Floats,
        train: bool = True,
        absent: Keys | None = None,
    ) -> Pulled | None:
        """Pooled vectors of each sample's keys into out; in training, a handle for the push.

        Sample s owns keys[offsets[s]:offsets[s + 1]]; without offsets each sample has one key.
        Keys of partitions that this shard does not hold contribute nothing, but a mean divides by
        all keys of the sample (not by their weights), so that the shards' means add up.

        A handle's `absent` are the keys that admission kept out. Given to a pull that is made
        again after a restart, they stay out of it, though they may be admitted by now.
        """
        if pooling not in ("sum", "mean"):
            raise ValueError(f"pooling must be 'sum' or 'mean', got {pooling!r}")
        return self._core.pull(keys, offsets, weights, pooling == "mean", out, train, absent)

    def push(
        self,
        pulled: Sequence[Pulled],
        gradients: Sequence[Floats],
        *,
        step: int,
        lr: float | None = None,
        clicks: NDArray[np.float32] | Sequence[NDArray[np.float32]] | None = None,
    ) -> dict[str, int]:
        """Apply the gradients of one batch: merged per key, one optimizer update per row.

        Clicks are per sample: one array for all handles, or a sequence of one array per handle.
        Counters, admission and eviction move here too, so a shard pushes at every step, if need
        be with empty lists.
        """
        return self._core.push(pulled, gradients, step, lr, clicks)

    def discard(self, pulled: Pulled) -> None:
        """Drop a handle that will not be pushed."""
        self._core.discard(pulled)

    def prefetch(self, keys: Keys) -> None:
        """Name keys that will be pulled soon, so that rows on disk are fetched meanwhile."""
        if self.config.hot_bytes is not None:
            self._core.prefetch(keys)

    def read(self, keys: Keys) -> tuple[NDArray[np.bool_], Floats, Floats]:
        """(found, vectors, state) of some keys; zeros where there is no row."""
        return self._core.read(keys)

    def snapshot(self) -> Snapshot:
        """A consistent view of all rows as of now, cheap to take and read in bounded memory."""
        return Snapshot(self._core.snapshot(), self._core.partitions)

    def reserve(self, num_rows: int) -> None:
        """Get memory for so many rows of an empty table, and touch it in the background.

        The system clears fresh memory when it is first touched, which takes as long as filling it.
        """
        self._core.reserve(num_rows)

    def wait_until_reserved(self) -> None:
        """Wait for what `reserve` does in the background."""
        self._core.wait_until_reserved()

    def load(self, partition: int, rows: Rows) -> None:
        """Put saved rows back; a row that exists is overwritten."""
        self._core.load(partition, rows.keys, rows.vectors, rows.state, dict(rows.counters))

    def load_extra(self, partition: int, extra: Mapping[str, NDArray[Any]]) -> None:
        """Put back what Snapshot.extra gave."""
        self._core.load_extra(partition, dict(extra))

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(self._core.partitions)

    @property
    def state_dim(self) -> int:
        """Floats of optimizer state per row."""
        return self._core.state_dim

    @property
    def row_bytes(self) -> int:
        return self._core.row_bytes

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return self._core.isa

    def __len__(self) -> int:
        return self._core.stats()["rows"]

    def memory_bytes(self) -> int:
        """Memory of rows, index and bookkeeping."""
        return self._core.memory_bytes()

    def stats(self) -> dict[str, int]:
        """Counts since the table was made: rows, created, evicted, rejected, hot, cold, ..."""
        return self._core.stats()
