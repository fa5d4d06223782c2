"""Snapshots: whole, consistent while training continues, and loadable into any number of shards."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heterps_hpc.core import Rows, Table, TableConfig, partition_of
from tests.core.workload import Contents, contents, skewed_keys, table_contents, train

BASE = TableConfig(
    dim=5, optimizer="adam", counters=True, track_steps=True, admission=3, num_partitions=21
)


def shards(config: TableConfig, n: int) -> list[Table]:
    return [Table(config, partitions=range(i, config.num_partitions, n)) for i in range(n)]


def reload(source: list[Table], target: list[Table]) -> None:
    owner = {p: t for t in target for p in t.partitions}
    for table in source:
        with table.snapshot() as snapshot:
            for part in snapshot.partitions():
                for rows in snapshot.read(part, max_rows=37):
                    owner[part].load(part, rows)
                owner[part].load_extra(part, snapshot.extra(part))
                snapshot.release(part)


@pytest.mark.parametrize("sketch_bytes", [None, 4096])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_round_trip_into_shards_and_on(n: int, sketch_bytes: int | None) -> None:
    config = replace(BASE, sketch_bytes=sketch_bytes)
    original = [Table(config)]
    train(original, 6, num_distinct=3000)
    copies = shards(config, n)
    reload(original, copies)
    assert table_contents(*copies) == table_contents(*original)
    # What is learned next is the same too: counts of keys without rows came along.
    rng = np.random.default_rng(3)
    keys = skewed_keys(rng, 4000, 3000)
    gradient = rng.standard_normal((4000, 5)).astype(np.float32)
    for table in original + copies:
        handle = table.pull(keys, out=np.empty((4000, 5), np.float32))
        assert handle is not None
        table.push([handle], [gradient], step=6)
    assert table_contents(*copies) == table_contents(*original)
    assert sum(len(t) for t in copies) == len(original[0])


def test_shards_learn_what_the_whole_table_learns() -> None:
    whole, parts = [Table(BASE)], shards(BASE, 3)
    a, b = train(whole, 6, num_distinct=2000), train(parts, 6, num_distinct=2000)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert table_contents(*parts) == table_contents(*whole)


def test_consistent_while_another_thread_reads() -> None:
    table = Table(replace(BASE, admission=1, max_age=5, evict_every=2))
    train([table], 5, num_distinct=20000)
    expected = table_contents(table)
    snapshot = table.snapshot()
    read: list[Contents] = []
    reader = threading.Thread(target=lambda: read.append(contents(snapshot, max_rows=50)))
    rng = np.random.default_rng(9)
    reader.start()
    for step in range(5, 40):
        keys = skewed_keys(rng, 3000, 40000)
        handle = table.pull(keys, out=np.empty((3000, 5), np.float32))
        assert handle is not None
        table.push([handle], [np.ones((3000, 5), np.float32)], step=step)
    reader.join()
    assert read[0] == expected
    assert contents(snapshot) == expected  # and it can be read again
    assert snapshot.preserved_bytes() > 0
    snapshot.close()
    assert snapshot.preserved_bytes() == 0
    with pytest.raises(RuntimeError, match="take a new snapshot"):
        contents(snapshot)


def test_released_partitions_cost_no_copies() -> None:
    table = Table(replace(BASE, admission=1))
    train([table], 3, num_distinct=5000)
    snapshot = table.snapshot()
    for part in snapshot.partitions():
        snapshot.release(part)
    train_step = table.pull(
        skewed_keys(np.random.default_rng(0), 500, 5000), out=np.empty((500, 5), np.float32)
    )
    assert train_step is not None
    table.push([train_step], [np.ones((500, 5), np.float32)], step=3)
    assert snapshot.preserved_bytes() == 0


def test_rows_changed_since_a_step() -> None:
    table = Table(TableConfig(dim=2, track_steps=True, num_partitions=4))
    for step, keys in enumerate(([1, 2, 3], [2, 4], [5])):
        handle = table.pull(np.array(keys, np.uint64), out=np.empty((len(keys), 2), np.float32))
        assert handle is not None
        table.push([handle], [np.ones((len(keys), 2), np.float32)], step=step)
    with table.snapshot() as snapshot:
        changed = [
            key
            for p in snapshot.partitions()
            for rows in snapshot.read(p, since=1)
            for key in rows.keys.tolist()
        ]
    assert sorted(changed) == [2, 4, 5]
    plain = Table(TableConfig(dim=2))
    with pytest.raises(ValueError, match="track_steps"):
        next(plain.snapshot().read(0, since=1))


def test_rows_of_other_partitions_are_refused_by_name() -> None:
    table = Table(BASE)
    train([table], 3, num_distinct=500)
    snapshot = table.snapshot()
    rows = next(snapshot.read(4))
    half = Table(BASE, partitions=[0, 1, 2])
    with pytest.raises(ValueError, match="partition 4 is not held"):
        half.load(4, rows)
    with pytest.raises(ValueError, match="belongs to partition 4, not to 1"):
        half.load(1, rows)
    assert len(half) == 0
    assert set(partition_of(rows.keys, 21).tolist()) == {4}


@pytest.mark.parametrize("tiers", [False, True])
def test_a_row_loaded_twice_is_what_came_last(tmp_path: Path, tiers: bool) -> None:
    config = TableConfig(dim=2, num_partitions=1)
    if tiers:
        config = replace(config, hot_bytes=100, spill_path=tmp_path / "spill")
    table = Table(config)
    keys = np.array([5, 6, 5] * 7000, np.uint64)  # more than are loaded at once
    values = np.arange(21000, dtype=np.float32)
    table.load(0, Rows(keys, np.stack([values, -values], 1), values[:, None], {}))
    found, vectors, state = table.read(np.array([5, 6], np.uint64))
    assert found.all()
    assert vectors.tolist() == [[20999, -20999], [20998, -20998]]
    assert state.tolist() == [[20999], [20998]]
    assert len(table) == table.stats()["loaded"] == 2
