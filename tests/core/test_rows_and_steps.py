"""Admission, counters, eviction, handles: what happens to rows between pulls and pushes."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_hpc.core import Pulled, Table, TableConfig


def pull(table: Table, *keys: int) -> Pulled:
    handle = table.pull(np.array(keys, np.uint64), out=np.empty((len(keys), 1), np.float32))
    assert handle is not None
    return handle


def push(table: Table, handle: Pulled, step: int, clicks: list[float] | None = None) -> None:
    gradient = np.ones((handle.num_samples, 1), np.float32)
    table.push(
        [handle],
        [gradient],
        step=step,
        clicks=None if clicks is None else np.array(clicks, np.float32),
    )


@pytest.mark.parametrize("sketch_bytes", [None, 1 << 12])
def test_admission_counts_pushed_sightings(sketch_bytes: int | None) -> None:
    table = Table(TableConfig(dim=1, admission=3, sketch_bytes=sketch_bytes))
    out = np.full((1, 1), np.nan, np.float32)
    for step in range(2):
        handle = table.pull(np.array([7], np.uint64), out=out)
        assert handle is not None
        assert out[0, 0] == 0  # no row yet: contributes nothing
        push(table, handle, step)
        assert len(table) == 0
    table.discard(pull(table, 8))  # a discarded sighting does not count
    pull(table, 7)
    assert len(table) == 1
    assert table.stats()["rejected"] == 3
    assert table.stats()["created"] == 1


def test_sketch_is_bounded_and_never_undercounts() -> None:
    table = Table(TableConfig(dim=1, admission=2, sketch_bytes=64, num_partitions=1))
    keys = np.arange(1000, dtype=np.uint64)
    out = np.empty((1000, 1), np.float32)
    handle = table.pull(keys, out=out)
    assert handle is not None
    table.push([handle], [out], step=0)
    assert table.memory_bytes() < 1_000_000
    table.pull(keys, out=out)
    assert len(table) == 1000


def test_evaluation_never_creates() -> None:
    table = Table(TableConfig(dim=1))
    out = np.full((1, 1), np.nan, np.float32)
    assert table.pull(np.array([3], np.uint64), out=out, train=False) is None
    assert len(table) == 0
    assert out == 0
    table.pull(np.array([3], np.uint64), out=out)
    assert len(table) == 1
    assert out != 0


def test_counters_decay_by_steps() -> None:
    table = Table(TableConfig(dim=1, counters=True, show_decay=0.5))
    push(table, pull(table, 1, 1, 2), step=0, clicks=[1, 0, 1])
    push(table, pull(table, 1), step=2, clicks=[1])
    with table.snapshot() as snapshot:
        rows = {
            key: (float(r.counters["show"][i]), float(r.counters["click"][i]))
            for p in snapshot.partitions()
            for r in snapshot.read(p)
            for i, key in enumerate(r.keys.tolist())
        }
    assert rows == {1: (2 * 0.25 + 1, 1 * 0.25 + 1), 2: (1, 1)}


def test_each_handle_may_bring_its_own_clicks() -> None:
    table = Table(TableConfig(dim=1, counters=True))
    handles = [pull(table, 1, 1, 2), pull(table, 2)]
    gradients = [np.ones((n, 1), np.float32) for n in (3, 1)]
    clicks = [np.array(c, np.float32) for c in ([1, 0, 1], [1])]
    table.push(handles, gradients, step=0, clicks=clicks)
    with table.snapshot() as snapshot:
        rows = {
            key: (float(r.counters["show"][i]), float(r.counters["click"][i]))
            for p in snapshot.partitions()
            for r in snapshot.read(p)
            for i, key in enumerate(r.keys.tolist())
        }
    assert rows == {1: (2, 1), 2: (2, 2)}


def test_eviction_by_score_keeps_what_is_clicked() -> None:
    table = Table(TableConfig(dim=1, counters=True, show_decay=0.5, min_score=0.1, evict_every=1))
    push(table, pull(table, 1, 2), step=0, clicks=[1, 0])
    assert len(table) == 2
    push(table, pull(table, 3), step=2, clicks=[1])
    assert table.read(np.array([1, 2, 3], np.uint64))[0].tolist() == [True, False, True]
    assert table.stats()["evicted"] == 1


def test_rows_of_pulls_in_flight_are_not_evicted() -> None:
    table = Table(TableConfig(dim=1, max_age=1, evict_every=1, optimizer="sgd", lr=1.0))
    first = pull(table, 1)
    before = table.read(np.array([1], np.uint64))[1][0, 0]
    for step in range(5):
        push(table, pull(table, 100 + step), step)
    assert len(table) == 3
    push(table, first, step=5)
    found, vectors, _ = table.read(np.array([1], np.uint64))
    assert found[0]
    assert vectors[0, 0] == before - 1
    for step in range(6, 9):
        table.push([], [], step=step)
    assert len(table) == 0


def test_evicted_rows_are_reused_and_come_back_fresh() -> None:
    table = Table(TableConfig(dim=1, max_age=1, evict_every=1, num_partitions=1))
    push(table, pull(table, *range(500)), step=0)
    fresh = Table(TableConfig(dim=1))
    size = table.memory_bytes()
    table.push([], [], step=2)
    assert len(table) == 0
    again = pull(table, *range(500, 1000), 7)
    pull(fresh, 7)
    seven = np.array([7], np.uint64)
    assert table.read(seven)[1].tobytes() == fresh.read(seven)[1].tobytes()
    assert table.memory_bytes() <= size + 8192
    table.discard(again)


def test_a_handle_is_for_one_push_of_its_own_table() -> None:
    table, other = Table(TableConfig(dim=1)), Table(TableConfig(dim=1, name="other"))
    handle = pull(table, 1)
    with pytest.raises(ValueError, match="another table"):
        push(other, handle, 0)
    with pytest.raises(ValueError, match="already pushed"):
        table.push([handle, handle], [np.ones((1, 1), np.float32)] * 2, step=0)
    push(table, handle, 0)
    with pytest.raises(ValueError, match="already pushed"):
        push(table, handle, 1)


def test_steps_do_not_go_back() -> None:
    table = Table(TableConfig(dim=1))
    table.push([], [], step=5)
    with pytest.raises(ValueError, match="step 4 after a push of step 5"):
        table.push([], [], step=4)


def test_skip_leaves_out_only_rows_that_are_not_finite() -> None:
    table = Table(TableConfig(dim=1, nonfinite="skip", optimizer="sgd", lr=1.0, init="zeros"))
    handle = pull(table, 1, 2)
    stats = table.push([handle], [np.array([[np.inf], [1.0]], np.float32)], step=0)
    assert stats["nonfinite_skipped"] == table.stats()["nonfinite_skipped"] == 1
    assert table.read(np.array([1, 2], np.uint64))[1][:, 0].tolist() == [0, -1]
