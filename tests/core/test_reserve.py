"""Memory reserved for rows that are expected: the same table, whatever was expected."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from heterps_hpc.core import Table, TableConfig
from tests.core.workload import skewed_keys, table_contents, train

CONFIG = TableConfig(dim=7, optimizer="adagrad_rowwise", num_partitions=5)
NUM_ROWS = 20_000  # several segments of the index


@pytest.fixture(scope="module")
def trained() -> Table:
    table = Table(CONFIG)
    keys = np.arange(NUM_ROWS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    pulled = table.pull(keys, out=np.empty((NUM_ROWS, 7), np.float32))
    assert pulled is not None
    gradient = np.random.default_rng(0).standard_normal((NUM_ROWS, 7)).astype(np.float32)
    table.push([pulled], [gradient], step=0)
    return table


def load_all(source: Table, target: Table) -> None:
    with source.snapshot() as snapshot:
        for partition in snapshot.partitions():
            for rows in snapshot.read(partition, max_rows=1000):
                target.load(partition, rows)
            target.load_extra(partition, snapshot.extra(partition))


def num_threads() -> int:
    """Threads of this process that touch reserved memory."""
    names = (path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))
    return sum(name == "heterps-touch" for name in names)


@pytest.mark.parametrize("expected", [0, 1, 777, NUM_ROWS, 10 * NUM_ROWS])
def test_rows_are_the_same_however_many_were_expected(trained: Table, expected: int) -> None:
    table = Table(CONFIG)
    table.reserve(expected)
    load_all(trained, table)
    assert table_contents(table) == table_contents(trained)
    assert len(table) == NUM_ROWS
    del table
    assert num_threads() == 0


def test_such_a_table_learns_and_grows_like_another(trained: Table) -> None:
    plain, reserved = Table(CONFIG), Table(CONFIG)
    load_all(trained, plain)
    reserved.reserve(NUM_ROWS // 3)
    load_all(trained, reserved)
    for table in (plain, reserved):
        train([table], 8, num_distinct=3 * NUM_ROWS, samples=4000)
    assert len(reserved) > NUM_ROWS
    assert table_contents(reserved) == table_contents(plain)


def test_no_more_index_than_growth_would_have_made(trained: Table) -> None:
    plain, reserved = Table(CONFIG), Table(CONFIG)
    load_all(trained, plain)
    reserved.reserve(NUM_ROWS)
    load_all(trained, reserved)
    assert reserved.memory_bytes() <= 1.2 * plain.memory_bytes()


def test_rows_on_disk_are_the_same(trained: Table, tmp_path: Path) -> None:
    tiered = replace(CONFIG, hot_bytes=100_000, spill_path=str(tmp_path / "cold"))
    table = Table(tiered)
    table.reserve(NUM_ROWS)
    load_all(trained, table)
    assert table_contents(table) == table_contents(trained)
    assert table.stats()["cold"] > NUM_ROWS // 2


def memory(kind: str) -> int:
    """Bytes of this process: `vms` those mapped, `rss` those touched."""
    found: int = getattr(psutil.Process().memory_info(), kind)
    return found


def test_only_rows_that_stay_in_memory_get_memory(tmp_path: Path) -> None:
    def grows(config: TableConfig) -> int:
        table, before = Table(config), memory("vms")
        table.reserve(4_000_000)  # 160 MB of rows, 75 MB of index
        return memory("vms") - before

    tiered = replace(CONFIG, hot_bytes=100_000, spill_path=str(tmp_path / "cold"))
    assert grows(CONFIG) > 200e6 > 120e6 > grows(tiered)


def test_a_thread_touches_the_memory() -> None:
    table, before = Table(CONFIG), memory("rss")
    table.reserve(4_000_000)
    table.wait_until_reserved()
    assert num_threads() == 0
    assert memory("rss") > before + 200e6
    assert len(table) == 0


def test_what_is_reserved_is_enough(trained: Table) -> None:
    """Whole chunks of blocks: what is loaded asks the system for nothing more."""
    table = Table(CONFIG)
    table.reserve(NUM_ROWS)
    before = memory("vms")
    load_all(trained, table)
    assert memory("vms") - before < 1e6


def test_a_table_with_rows_keeps_them(trained: Table) -> None:
    table = Table(CONFIG)
    load_all(trained, table)
    table.reserve(NUM_ROWS)
    load_all(trained, table)
    assert table_contents(table) == table_contents(trained)


def test_a_table_that_goes_ends_its_thread() -> None:
    table = Table(CONFIG)
    table.reserve(20_000_000)  # seconds on some hosts
    train([table], 2, num_distinct=1000)
    assert len(table) == len(np.unique(_seen(2, 1000)))
    started = time.monotonic()
    del table
    assert num_threads() == 0
    assert time.monotonic() - started < 10


def _seen(num_batches: int, num_distinct: int) -> list[int]:
    """The keys of `train`'s batches."""
    rng = np.random.default_rng(0)
    keys: list[int] = []
    for _ in range(num_batches):
        count = int(rng.integers(0, 6, 512).sum())
        keys += skewed_keys(rng, count, num_distinct).tolist()
        rng.standard_normal((512, 7))
    return keys


def test_more_rows_than_a_shard_can_have_are_refused() -> None:
    with pytest.raises(ValueError, match="more shards"):
        Table(CONFIG).reserve(1 << 32)
    assert num_threads() == 0
