"""Checkpoints against a plain file copy: write, restore, pause of training, resharding.

`python -m benchmarks.checkpoint [--quick] [--json FILE] [--dir DIR]`
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.record import Report, standard_options
from heterps_hpc.checkpoint import Checkpoint, Contents, Manifest
from heterps_hpc.checkpoint.reshard import even_split, reshard
from heterps_hpc.checkpoint.store import publish
from heterps_hpc.core import Table, TableConfig
from heterps_hpc.runtime.state.capture import Captured, write_shard
from heterps_hpc.runtime.state.table_rows import load_table, row_format

DIM = 16
BATCH = 4096
COPY_BYTES = 1 << 23


def make_table(num_rows: int) -> Table:
    """A table with that many rows."""
    table = Table(TableConfig(dim=DIM, name="bench", optimizer="adagrad_rowwise"))
    step = 1 << 16
    out = np.empty((step, DIM), np.float32)
    for number, first in enumerate(range(0, num_rows, step)):
        keys = np.arange(first, min(first + step, num_rows), dtype=np.uint64)
        pulled = table.pull(keys, out=out[: len(keys)])
        table.push([pulled], [np.full((len(keys), DIM), 0.1, np.float32)], step=number)
    return table


def save(table: Table, directory: Path, captured: Captured | None = None) -> Checkpoint:
    """One rank's checkpoint of one table."""
    captured = captured or capture_table(table)
    directory.mkdir(parents=True)
    shard = write_shard(captured, directory / "rank-00000-bench.h5", 0)
    captured.close()
    manifest = Manifest(
        job="bench",
        step=1,
        saved_at=time.time(),
        model="bench",
        model_fingerprint="",
        data_fingerprint="",
        num_partitions=table.config.num_partitions,
        must_match={},
        tables=captured.formats,
        shards=(shard,),
    )
    publish(directory, manifest)
    return Checkpoint.open(directory)


def capture_table(table: Table) -> Captured:
    """What training stands still for."""
    return Captured(1, {"bench": table.snapshot()}, {"bench": row_format(table)})


def restore(checkpoint: Checkpoint) -> None:
    """A new table with all rows of a checkpoint, checked, as a rank makes it."""
    table = Table(TableConfig(dim=DIM, name="bench", optimizer="adagrad_rowwise"))
    with Contents(checkpoint) as contents:
        load_table(contents, "bench", table, tick=lambda: None)


def copy(source: Path, target: Path) -> None:
    """A plain copy, on the disk when it returns."""
    with source.open("rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing, COPY_BYTES)
        writing.flush()
        os.fsync(writing.fileno())


def timed(work: Callable[..., object], *args: object) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    work(*args)
    return time.perf_counter() - began


def throughput(report: Report, table: Table, folder: Path, repeats: int) -> Checkpoint:
    """Write, copy and restore in turns; medians."""
    seconds: dict[str, list[float]] = {"write": [], "copy": [], "restore": []}
    for turn in range(repeats):
        shutil.rmtree(folder / "saved", ignore_errors=True)
        seconds["write"].append(timed(save, table, folder / "saved"))
        checkpoint = Checkpoint.open(folder / "saved")
        (shard,) = checkpoint.manifest.shards
        target = folder / f"copy{turn}"
        seconds["copy"].append(timed(copy, checkpoint.path / shard.file, target))
        target.unlink()
        seconds["restore"].append(timed(restore, checkpoint))
    size = checkpoint.manifest.num_bytes / 1e9
    rate = {name: size / statistics.median(values) for name, values in seconds.items()}
    report.add(f"plain fsynced copy of {size:.2f} GB", rate["copy"], "GB/s")
    report.add("write", rate["write"], "GB/s")
    report.add("write, relative to the copy", rate["write"] / rate["copy"], "x", ">= 0.7")
    report.add("restore", rate["restore"], "GB/s")
    report.add("restore, relative to the copy", rate["restore"] / rate["copy"], "x", ">= 0.7")
    report.notes.append(
        "A restore fills memory that the process never had before. A thread touches it meanwhile, "
        "and is the limit where the host has yet to find that memory: then 1 to 2 s of a restore's "
        "processor time are the kernel's, 0.3 s where the memory was in use before."
    )
    return checkpoint


def pause(report: Report, table: Table, folder: Path, num_rows: int) -> None:
    """Train while a checkpoint is written; how long training stood still, how much it slowed."""
    rng = np.random.default_rng(1)
    out = np.empty((BATCH, DIM), np.float32)
    gradient = np.full((BATCH, DIM), 1e-3, np.float32)
    step = 1_000_000

    def train() -> float:
        nonlocal step
        keys = rng.integers(0, num_rows, BATCH).astype(np.uint64)
        step += 1
        began = time.perf_counter()
        table.push([table.pull(keys, out=out)], [gradient], step=step)
        return time.perf_counter() - began

    for _ in range(20):
        train()
    before = [train() for _ in range(200)]
    began = time.perf_counter()
    captured = capture_table(table)
    stood_still = time.perf_counter() - began
    shutil.rmtree(folder / "paused", ignore_errors=True)
    writer = threading.Thread(target=save, args=(table, folder / "paused", captured))
    writer.start()
    during = []
    preserved = 0
    while writer.is_alive():
        during.append(train())
        preserved = max(preserved, captured.tables["bench"].preserved_bytes())
    written = time.perf_counter() - began
    report.add("time of a write in the background", written, "s")
    report.add("training stands still for", stood_still * 1e3, "ms")
    report.add("pause, of the write time", 100 * stood_still / written, "%", "<= 10")
    slow = statistics.mean(during) / statistics.mean(before)
    report.add("a step during the write, relative to before", slow, "x")
    report.add("longest step during the write", 1e3 * max(during), "ms")
    report.add("copied on write, of the table", 100 * preserved / table.memory_bytes(), "%")


def resharding(report: Report, checkpoint: Checkpoint, folder: Path, num_rows: int) -> None:
    """One file into eight."""
    shutil.rmtree(folder / "resharded", ignore_errors=True)
    seconds = timed(reshard, checkpoint, folder / "resharded", even_split(checkpoint, 8))
    report.add(f"reshard {num_rows / 1e6:g} million rows into 8 files", seconds, "s")


def main() -> None:
    """Measure and print."""
    options = standard_options(__doc__)
    options.add_argument("--dir", type=Path, default=None, help="where to write [a new folder]")
    given = options.parse_args()
    num_rows = 1_000_000 if given.quick else 10_000_000
    report = Report("checkpoint", "checkpoints against a plain file copy")
    with tempfile.TemporaryDirectory(dir=given.dir, prefix="heterps-bench-") as name:
        folder = Path(name)
        table = make_table(num_rows)
        checkpoint = throughput(report, table, folder, repeats=7)
        pause(report, table, folder, num_rows)
        resharding(report, checkpoint, folder, num_rows)
    report.finish(given.json)


if __name__ == "__main__":
    main()
