"""Data: text to shards against pandas and a plain loop; the reader against a bare memory map.

python -m benchmarks.data [--quick | --filters | --cold] [--json FILE]

--filters measures what the default of 4,096 rows per block without compression rests on;
--cold reads from a disk whose pages the system was asked to drop.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import get_args

import h5py
import hdf5plugin
import numpy as np

from benchmarks.data_cold import cold_disk
from benchmarks.data_input import write_binaries, write_criteo_like
from benchmarks.peers import peer_python
from benchmarks.record import Report, alternating_medians, pin_to_cores, standard_options
from benchmarks.train.workload import W2, ready_data
from data_prep.criteo import CriteoSource
from data_prep.options import PrepareOptions
from data_prep.prepare import prepare
from data_prep.synthetic import SyntheticSlot, write_synthetic
from heterps_hpc.dataset import ColumnSelection, Compression, Dataset, Order, Position, Reader

BATCH = 4096
NUM_SLOTS = 26
EPOCHS = 10
BLOCKS = (1024, 4096, 16384)


def prepare_seconds_per_row(source: Path, out: Path) -> float:
    """Ours, in one process, on the core that the peers get."""
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    made = prepare(CriteoSource([source]), PrepareOptions(out, processes=1))
    return (time.perf_counter() - started) / made["train"].num_rows


def peer_seconds_per_row(python: Path, kind: str, source: Path, out: Path) -> float:
    """A peer, in a process of its own; it inherits the core."""
    script = Path(__file__).with_name("data_peers.py")
    ran = subprocess.run(
        [python, script, kind, source, out], check=True, capture_output=True, text=True
    )
    return float(ran.stdout)


def preparation(report: Report, folder: Path, num_rows: int, repeats: int) -> None:
    """Criteo text to shards."""
    large, small = folder / "large.tsv", folder / "small.tsv"
    write_criteo_like(large, num_rows)
    write_criteo_like(small, num_rows // 10)  # enough for the loop, which is slow
    python = peer_python("pandas")
    work: dict[str, Callable[[], float]] = {
        "data_prep": lambda: prepare_seconds_per_row(large, folder / "ours"),
        "pandas": lambda: peer_seconds_per_row(python, "pandas", large, folder / "pandas.h5"),
        "loop": lambda: peer_seconds_per_row(python, "loop", small, folder / "loop.h5"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            seconds[name].append(run())
    rate = {name: 1 / statistics.median(values) for name, values in seconds.items()}
    report.add("Criteo text to shards, one core", rate["data_prep"], "rows/s", ">= 200000")
    report.add("the same by pandas.read_csv", rate["pandas"], "rows/s")
    report.add("the same by a Python loop", rate["loop"], "rows/s")
    report.add("data_prep / pandas", rate["data_prep"] / rate["pandas"], "x", ">= 3")
    report.add("data_prep / Python loop", rate["data_prep"] / rate["loop"], "x")


def epochs(dataset: Dataset, shuffle: bool, count: int = EPOCHS) -> int:
    """Read all keys some times, as a rank that holds all slots does."""
    want = ColumnSelection(tuple(slot.name for slot in dataset.manifest.slots))
    order = Order(dataset, BATCH, seed=1, shuffle=shuffle)
    with Reader(dataset, order, want, num_epochs=count) as reader:
        return sum(len(keys.keys) for batch in reader for keys in batch.slots.values())


def map_epochs(folder: Path, names: list[str], num_rows: int, order: np.ndarray | None) -> int:
    """The same by numpy.memmap: a copy of each column's rows of each batch."""
    columns = [np.memmap(folder / name, np.uint64, "r") for name in names]
    total = 0
    for _ in range(EPOCHS):
        for first in range(0, num_rows, BATCH):
            rows = slice(first, first + BATCH) if order is None else order[first : first + BATCH]
            total += sum(len(np.array(column[rows])) for column in columns)
    return total


def reading(report: Report, folder: Path, num_rows: int, repeats: int) -> None:
    """The reader against memory maps of the same bytes, all of them in the page cache."""
    slots = [SyntheticSlot(f"s{number}", 100_000) for number in range(NUM_SLOTS)]
    write_synthetic(folder / "one", num_rows, slots, num_dense=0)
    dataset = Dataset.open(folder / "one")
    names = [slot.name for slot in slots]
    write_binaries(folder / "raw", dict(_columns(dataset)))
    scattered = np.random.default_rng(0).permutation(num_rows)
    seconds = alternating_medians(
        {
            "map": lambda: map_epochs(folder / "raw", names, num_rows, None),
            "reader in order": lambda: epochs(dataset, False),
            "reader shuffled": lambda: epochs(dataset, True),
            "map shuffled": lambda: map_epochs(folder / "raw", names, num_rows, scattered),
        },
        repeats,
    )
    total = num_rows * NUM_SLOTS * EPOCHS
    rate = {name: total / value for name, value in seconds.items()}
    report.add("numpy.memmap, in order", rate["map"], "keys/s")
    report.add("numpy.memmap, rows shuffled", rate["map shuffled"], "keys/s")
    report.add("reader, in order", rate["reader in order"], "keys/s")
    report.add("reader, shuffled", rate["reader shuffled"], "keys/s")
    order = "reader in order / numpy.memmap in order"
    report.add(order, rate["reader in order"] / rate["map"], "x")
    ratio = rate["reader shuffled"] / rate["map shuffled"]
    report.add("reader shuffled / numpy.memmap shuffled", ratio, "x")
    ratio = rate["reader shuffled"] / rate["map"]
    report.add("reader shuffled / numpy.memmap in order", ratio, "x")
    report.notes.append(
        "What the reader takes of a training step is measured, with a goal, by benchmarks.train."
    )


def _columns(dataset: Dataset) -> Iterator[tuple[str, np.ndarray]]:
    for slot in dataset.manifest.slots:
        order = Order(dataset, dataset.manifest.num_rows, shuffle=False)
        with Reader(dataset, order, ColumnSelection((slot.name,)), num_epochs=1) as reader:
            yield slot.name, next(reader).slots[slot.name].keys


def many_keys(report: Report, folder: Path, num_rows: int, repeats: int) -> None:
    """Slots of several keys per sample."""
    slots = [SyntheticSlot(f"m{number}", 100_000, keys_per_sample=5) for number in range(5)]
    write_synthetic(folder / "many", num_rows, slots, num_dense=0)
    dataset = Dataset.open(folder / "many")
    total = epochs(dataset, False)
    seconds = alternating_medians(
        {"order": lambda: epochs(dataset, False), "shuffled": lambda: epochs(dataset, True)},
        repeats,
    )
    report.add("reader, 5 keys per sample, in order", total / seconds["order"], "keys/s")
    report.add("reader, 5 keys per sample, shuffled", total / seconds["shuffled"], "keys/s")


def filters(report: Report, folder: Path, num_rows: int, repeats: int) -> None:
    """What each filter and each size of a block saves and costs, on Criteo's columns."""
    text = folder / "criteo.tsv"
    write_criteo_like(text, num_rows)
    made: dict[str, Dataset] = {}
    kinds = [(name, 4096) for name in get_args(Compression)]
    kinds += [("none", rows) for rows in BLOCKS if rows != 4096]
    for name, block_rows in kinds:
        title = f"{name}, blocks of {block_rows} rows"
        options = PrepareOptions(
            folder / f"{name}-{block_rows}", compression=name, block_rows=block_rows
        )
        started = time.perf_counter()
        manifest = prepare(CriteoSource([text]), options)["train"]
        seconds = time.perf_counter() - started
        made[title] = Dataset.open(options.out)
        ratio = manifest.raw_bytes / manifest.num_stored_bytes
        report.add(f"{title}: ratio", ratio, "x")
        report.add(f"{title}: preparing", manifest.num_rows / seconds, "rows/s")
    for shuffle, word in ((False, "in order"), (True, "shuffled")):
        work = {title: partial(epochs, dataset, shuffle, 1) for title, dataset in made.items()}
        seconds_of = alternating_medians(work, repeats)
        for title, value in seconds_of.items():
            report.add(f"{title}: reading {word}", num_rows * NUM_SLOTS / value, "keys/s")

    _bit_shuffle(report, dict(_columns(next(iter(made.values())))), folder)


def _bit_shuffle(report: Report, columns: dict[str, np.ndarray], folder: Path) -> None:
    """Blosc with zstd with and without its shuffling of bits, by HDF5 alone."""
    num_keys = sum(map(len, columns.values()))
    for word, shuffle in (
        ("bits shuffled", hdf5plugin.Blosc.BITSHUFFLE),
        ("as they are", hdf5plugin.Blosc.NOSHUFFLE),
    ):
        packed = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=shuffle)
        started = time.perf_counter()
        with h5py.File(folder / "packed.h5", "w") as file:
            for name, keys in columns.items():
                file.create_dataset(name, data=keys, chunks=(4096,), **packed)
        written = time.perf_counter()
        with h5py.File(folder / "packed.h5") as file:
            for name in columns:
                file[name][()]
        read = time.perf_counter()
        ratio = 8 * num_keys / (folder / "packed.h5").stat().st_size
        report.add(f"HDF5, zstd, {word}: ratio", ratio, "x")
        report.add(f"HDF5, zstd, {word}: writing", num_keys / (written - started), "keys/s")
        report.add(f"HDF5, zstd, {word}: reading", num_keys / (read - written), "keys/s")


def gather(report: Report, folder: Path) -> None:
    """Processor time of the reading thread on the second training workload, for one of two ranks
    that each hold half of the slots."""
    dataset = Dataset.open(ready_data(W2, folder))
    order = Order(dataset, W2.batch_size, seed=0)
    want = ColumnSelection(W2.slots[: W2.num_slots // 2], labels=True)
    milliseconds = []
    for _ in range(4):
        with TimedReader(dataset, order, want, num_epochs=2) as reader:
            count = sum(1 for _ in reader)
        milliseconds.append(1e3 * reader.thread_seconds / count)
    report.add("reader thread, W2, first time", milliseconds[0], "ms/batch")
    median = statistics.median(milliseconds[1:])
    report.add("reader thread, W2, memory in use before", median, "ms/batch")


class TimedReader(Reader):
    """Knows how much processor time its thread took."""

    thread_seconds = 0.0

    def _work(self, start: Position) -> None:
        try:
            super()._work(start)
        finally:
            self.thread_seconds = time.thread_time()


def cold(quick: bool, json_path: Path | None) -> None:
    """A report of its own: disks differ more than processors do."""
    report = Report("data", "Click logs: reading from a cold disk")
    report.notes.append(
        "One core. Before each run the page cache is asked to drop the shards (fsync, then "
        "posix_fadvise DONTNEED); a host's own cache below a virtual disk is not reached by that."
    )
    slots = [SyntheticSlot(f"s{number}", 100_000) for number in range(NUM_SLOTS)]
    with tempfile.TemporaryDirectory(prefix="heterps-bench-") as name:
        write_synthetic(Path(name) / "one", 400_000 if quick else 2_000_000, slots, num_dense=0)
        cold_disk(report, Dataset.open(Path(name) / "one"), 3 if quick else 5)
    report.finish(json_path)


def main() -> None:
    parser = standard_options(__doc__)
    parser.add_argument("--filters", action="store_true", help="filters and sizes of blocks")
    parser.add_argument("--cold", action="store_true", help="from the disk, not from its cache")
    given = parser.parse_args()
    pin_to_cores([0])
    if given.cold:
        cold(given.quick, given.json)
        return
    if given.filters:
        report = Report("data", "Click logs: filters and sizes of blocks")
        report.notes.append("Criteo's columns, one core, from the page cache.")
        with tempfile.TemporaryDirectory(prefix="heterps-bench-") as name:
            filters(report, Path(name), 100_000 if given.quick else 300_000, 5)
        report.finish(given.json)
        return
    report = Report("data", "Preparing and reading click logs")
    report.notes.append(
        "All on one core and from the page cache. pandas encodes categories and hashes distinct "
        "values only; memmap copies each column's rows of each batch of 4,096."
    )
    report.notes.append(
        "In order the reader copies by preadv, at 7 GB/s of the kernel's against 12 GB/s from a "
        "warm map: that is half of a batch's time in the profiler; the rest is Python per column "
        "and the handing over between two threads on the one core. It does not map files: see "
        "docs/data.md."
    )
    with tempfile.TemporaryDirectory(prefix="heterps-bench-") as name:
        folder = Path(name)
        preparation(report, folder, 200_000 if given.quick else 600_000, 1 if given.quick else 3)
        reading(report, folder, 400_000 if given.quick else 1_000_000, 5)
        if not given.quick:
            many_keys(report, folder, 500_000, 5)
            gather(report, folder / "train")
    report.finish(given.json)


if __name__ == "__main__":
    main()
