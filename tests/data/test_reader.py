"""The reader as a neighbour: errors, forks, other processes, memory."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from data_prep.synthetic import SyntheticSlot, write_synthetic
from heterps_hpc.dataset import ColumnSelection, Dataset, Order, Reader
from heterps_hpc.dataset.read import reader as reader_module
from heterps_hpc.errors import UserError
from tests.data.samples import write_mixed

DESCRIPTORS = Path("/proc/self/fd")
ONE = ColumnSelection(("one",), labels=True)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    write_mixed(tmp_path / "d", 500, rows_per_shard=200, block_rows=16)
    return Dataset.open(tmp_path / "d")


def test_errors_of_the_thread_surface(dataset: Dataset) -> None:
    def broken(num_rows: int) -> list[tuple[int, int]]:
        raise KeyError("mine")

    with Reader(dataset, Order(dataset, 50), ONE, rows=broken) as reader:
        with pytest.raises(KeyError, match="mine"):
            next(reader)
        with pytest.raises(StopIteration):
            next(reader)


@pytest.mark.parametrize("ranges", [[(5, 3)], [(0, 51)], [(10, 20), (15, 30)]])
def test_wrong_ranges_are_refused(dataset: Dataset, ranges: list[tuple[int, int]]) -> None:
    with (
        Reader(dataset, Order(dataset, 50), ONE, rows=lambda n: ranges) as reader,
        pytest.raises(ValueError, match="must ascend"),
    ):
        next(reader)


def test_no_rows_wanted_gives_empty_batches(dataset: Dataset) -> None:
    want = ColumnSelection(("one", "many", "heavy"), dense=True, labels=True)
    with Reader(dataset, Order(dataset, 50), want, rows=lambda n: [], num_epochs=1) as reader:
        batches = list(reader)
    assert len(batches) == 10
    assert batches[0].dense is not None
    assert batches[0].dense.shape == (0, 3)
    assert batches[0].slots["many"].offsets is not None
    assert batches[0].slots["many"].offsets.tolist() == [0]


def num_descriptors() -> int:
    return sum(1 for _ in DESCRIPTORS.iterdir())


def test_close_ends_the_thread_and_closes_the_files(dataset: Dataset) -> None:
    before = num_descriptors()
    reader = Reader(dataset, Order(dataset, 10), ONE)
    next(reader)
    reader.close()
    reader.close()
    assert not any(thread.name == "heterps-reader" for thread in threading.enumerate())
    assert num_descriptors() == before
    with pytest.raises(StopIteration):
        next(reader)


@pytest.mark.parametrize("read_ahead", [1, 3])
def test_read_ahead_is_bounded(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, read_ahead: int
) -> None:
    made: list[int] = []
    make = reader_module._batch
    monkeypatch.setattr(reader_module, "_batch", lambda *args: (made.append(1), make(*args))[1])
    order = Order(dataset, 16, window_rows=16)
    with Reader(dataset, order, ONE, read_ahead=read_ahead) as reader:
        for taken in range(4):
            while len(made) < read_ahead + 1 + taken:  # --timeout ends this if the thread is dead
                time.sleep(0.001)
            time.sleep(0.1)  # a thread without a bound would go through all 32 batches
            assert reader._ready.qsize() == read_ahead
            assert len(made) == read_ahead + 1 + taken  # those ready, and one in its hands
            next(reader)


def _use_after_fork(reader: Reader, answers: multiprocessing.Queue[str]) -> None:
    shards = [link for link in DESCRIPTORS.iterdir() if _is_shard(link)]
    try:
        next(reader)
        answers.put("no error")
    except UserError as error:
        answers.put(f"{len(shards)} shards open; {error}")


def _is_shard(link: Path) -> bool:
    try:
        return link.readlink().name.endswith(".h5")
    except OSError:
        return False


@pytest.mark.parametrize("compression", ["none", "lzf"])
def test_no_handle_crosses_a_fork(tmp_path: Path, compression: str) -> None:
    write_mixed(tmp_path / "d", 500, block_rows=16, compression=compression)
    dataset = Dataset.open(tmp_path / "d")
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    with Reader(dataset, Order(dataset, 50, window_rows=16), ColumnSelection(("one",))) as reader:
        first = next(reader)
        child = fork.Process(target=_use_after_fork, args=(reader, answers))
        child.start()
        answer = answers.get(timeout=20)
        child.join(20)
        assert child.exitcode == 0
        assert len(next(reader).sample_ids) == len(first.sample_ids)  # the parent continues
    assert answer.startswith("0 shards open; this reader was made before a fork")


def _sum_of_ids(path: str) -> int:
    dataset = Dataset.open(path)
    with Reader(dataset, Order(dataset, 30), ONE, num_epochs=3) as reader:
        return sum(int(batch.sample_ids.sum()) for batch in reader)


def test_many_processes_read_at_once(dataset: Dataset) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        sums = pool.map(_sum_of_ids, [str(dataset.path)] * 6)
    assert sums == [3 * sum(range(500))] * 6


MEASURE = """
import resource, sys
from heterps_hpc.dataset import Dataset, Order, Reader, ColumnSelection
dataset = Dataset.open(sys.argv[1])
want = ColumnSelection(tuple(slot.name for slot in dataset.manifest.slots), dense=True, labels=True)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
order = Order(dataset, 512, window_rows=16384)
with Reader(dataset, order, want, num_epochs=1) as reader:
    first = len(next(reader).sample_ids)
    before = peak()
    total = first + sum(len(batch.sample_ids) for batch in reader)
print(peak() - before, total)
"""


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    slots = [SyntheticSlot(f"s{number}", 1000) for number in range(20)]
    slots.append(SyntheticSlot("many", 1000, keys_per_sample=5))
    manifest = write_synthetic(tmp_path / "d", 300_000, slots, num_dense=8)
    window_bytes = manifest.raw_bytes * 16384 // manifest.num_rows
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "d")],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    grown, total = (int(word) for word in run.stdout.split())
    assert total == 300_000
    assert manifest.raw_bytes > 15 * window_bytes
    assert grown < 6 * window_bytes


def test_reading_twice_gives_the_same_bits(dataset: Dataset) -> None:
    def everything() -> bytes:
        with Reader(dataset, Order(dataset, 64, seed=9), ONE, num_epochs=2) as reader:
            return b"".join(np.ascontiguousarray(b.slots["one"].keys).tobytes() for b in reader)

    assert everything() == everything()


def test_one_label_of_several(tmp_path: Path) -> None:
    rows = write_mixed(tmp_path / "d", 90)
    dataset = Dataset.open(tmp_path / "d")
    order = Order(dataset, 90, shuffle=False)
    with Reader(dataset, order, ColumnSelection(labels="buy"), num_epochs=1) as reader:
        labels = next(reader).labels
    assert labels is not None
    assert rows.labels is not None
    np.testing.assert_array_equal(labels, rows.labels[:, 1:])
    with pytest.raises(UserError, match="no label 'by'; did you mean 'buy'"):
        Reader(dataset, order, ColumnSelection(labels="by"))
    manifest = dataset.manifest.learning("buy")
    assert manifest.labels == ("buy", "click")
    assert manifest.label_means == dataset.manifest.label_means[::-1]


def test_a_manifest_of_other_columns_is_refused(dataset: Dataset) -> None:
    fewer = dataset.manifest.model_copy(update={"slots": dataset.manifest.slots[:-1]})
    edited = Dataset(dataset.path, fewer)
    want = ColumnSelection(slots=(fewer.slots[0].name,))
    with (
        pytest.raises(UserError, match=r"the shard has \d+ columns, the manifest lists \d+;"),
        Reader(edited, Order(edited, 10), want) as reader,
    ):
        next(reader)
