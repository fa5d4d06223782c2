"""Reading from a cold disk: the reader against a plain read of the same files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.record import Report
from heterps_hpc.dataset import ColumnSelection, Dataset, Order, Reader

BATCH = 4096
_PIECE_BYTES = 1 << 20


def drop_from_cache(files: list[Path]) -> None:
    """Let the system forget the files' pages; written ones must be on disk for that."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_plainly(files: list[Path]) -> None:
    """From the first byte to the last, a megabyte at a time."""
    buffer = bytearray(_PIECE_BYTES)
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


def read_epoch(dataset: Dataset, shuffle: bool) -> None:
    """All columns of all rows, once."""
    manifest = dataset.manifest
    want = ColumnSelection(
        tuple(slot.name for slot in manifest.slots),
        dense=bool(manifest.dense_columns),
        labels=bool(manifest.labels),
    )
    order = Order(dataset, BATCH, seed=1, shuffle=shuffle)
    with Reader(dataset, order, want, num_epochs=1) as reader:
        for _ in reader:
            pass


def cold_disk(report: Report, dataset: Dataset, repeats: int) -> None:
    """Peers in turn, the cache emptied before each."""
    files = [dataset.path / shard.file for shard in dataset.manifest.shards]
    num_bytes = sum(file.stat().st_size for file in files)
    work: dict[str, Callable[[], None]] = {
        "plain read": lambda: read_plainly(files),
        "reader in order": lambda: read_epoch(dataset, False),
        "reader shuffled": lambda: read_epoch(dataset, True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            drop_from_cache(files)
            started = perf_counter()
            run()
            seconds[name].append(perf_counter() - started)
    rate = {name: num_bytes / median(values) for name, values in seconds.items()}
    for name, value in rate.items():
        report.add(f"cold disk, {name}", value / 1e6, "MB/s")
    for name in ("reader in order", "reader shuffled"):
        report.add(f"cold disk, {name} / plain read", rate[name] / rate["plain read"], "x")
