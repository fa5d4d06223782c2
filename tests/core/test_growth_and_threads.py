"""Growth over many doublings, threads, instruction sets: none of them changes a bit."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heterps_hpc.core import Table, TableConfig, hash64, partition_of
from tests.core.workload import skewed_keys, table_contents, train

BASE = TableConfig(dim=16)


def test_growth_keeps_every_row() -> None:
    table = Table(replace(BASE, dim=2))
    keys = hash64(np.arange(300_000, dtype=np.uint64))
    for part in np.array_split(keys, 30):
        handle = table.pull(part, out=np.empty((len(part), 2), np.float32))
        assert handle is not None
        values = np.stack([part & np.uint64(0xFFFF), part >> np.uint64(48)], 1).astype(np.float32)
        table.push([handle], [values], step=0)
    assert len(table) == len(keys)
    found, _, state = table.read(keys)
    assert found.all()
    squares = (keys & np.uint64(0xFFFF)).astype(np.float64) ** 2
    squares += (keys >> np.uint64(48)).astype(np.float64) ** 2
    np.testing.assert_allclose(state[:, 0], squares / 2, rtol=1e-6)
    assert not table.read(hash64(np.arange(300_000, 301_000, dtype=np.uint64)))[0].any()


@pytest.mark.parametrize("shift", [0, 32])
def test_keys_that_collide_are_kept_apart(shift: int) -> None:
    """Keys whose hashes are equal in one half: they share a home in the index, or a place in the
    list of a batch's distinct keys."""
    hashes = [half << 32 - shift | i << shift for half in (1, 1 << 31) for i in range(1000)]
    keys = np.array([_unmix64(h) for h in hashes], np.uint64)
    table = Table(replace(BASE, dim=1, max_age=1, evict_every=1))
    handle = table.pull(keys, out=np.empty((2000, 1), np.float32))
    assert handle is not None
    table.push([handle], [np.arange(1, 2001, dtype=np.float32)[:, None]], step=0)
    _, _, state = table.read(keys)
    assert state[:, 0].tolist() == [float(i * i) for i in range(1, 2001)]
    kept = table.pull(keys[::2].copy(), out=np.empty((1000, 1), np.float32))
    assert kept is not None
    table.push([], [], step=5)  # evicts the others, out of overflowed buckets
    assert table.read(keys)[0].tolist() == [True, False] * 1000


def test_too_many_keys_that_collide_are_refused() -> None:
    keys = np.array([_unmix64(7 << 32 | i) for i in range(4000)], np.uint64)
    table = Table(replace(BASE, dim=1))
    with pytest.raises(RuntimeError, match="made to collide"):
        table.pull(keys, out=np.empty((4000, 1), np.float32))
    assert 3000 < len(table) < 4000
    assert table.read(keys[: len(table)])[0].all()


def test_rows_come_and_go_while_the_index_grows() -> None:
    """Evicted keys leave holes and overflowed buckets behind, in every phase of its growth."""
    rng = np.random.default_rng(8)
    table = Table(replace(BASE, dim=1, max_age=3, evict_every=2, num_partitions=4))
    last_seen: dict[int, int] = {}
    for step in range(60):
        keys = rng.integers(0, 1 << 63, 500 + 100 * step).astype(np.uint64)
        keys[: len(keys) // 4] = rng.choice(
            np.array(list(last_seen) or [0], np.uint64), len(keys) // 4
        )
        handle = table.pull(keys, out=np.empty((len(keys), 1), np.float32))
        assert handle is not None
        table.push([handle], [np.ones((len(keys), 1), np.float32)], step=step)
        last_seen |= dict.fromkeys(keys.tolist(), step)
        swept = {p: step if step % 2 == p * 2 // 4 else step - 1 for p in range(4)}
        parts = partition_of(np.array(list(last_seen), np.uint64), 4).tolist()
        last_seen = {
            key: seen
            for (key, seen), part in zip(last_seen.items(), parts, strict=True)
            if swept[part] - seen <= 3
        }
        assert len(table) == len(last_seen)
        assert table.read(np.array(list(last_seen), np.uint64))[0].all()
    assert table.stats()["evicted"] > 100_000


def _unmix64(x: int) -> int:
    """The inverse of the index hash."""
    mask = (1 << 64) - 1
    for factor in (0xC4CEB9FE1A85EC53, 0xFF51AFD7ED558CCD):
        x ^= x >> 33
        x = x * pow(factor, -1, 1 << 64) & mask
    return x ^ (x >> 33)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad_rowwise", "adagrad", "adam"])
@pytest.mark.parametrize("dim", [1, 4, 7, 16, 33, 64])
def test_instruction_sets_agree_bitwise(optimizer: Any, dim: int) -> None:
    config = replace(BASE, dim=dim, optimizer=optimizer, clip_norm=0.7, weight_decay=0.01)
    best, baseline = Table(config), Table(config, isa="baseline")
    assert baseline.isa == "baseline"
    a, b = train([best], 5, num_distinct=1000), train([baseline], 5, num_distinct=1000)
    assert [x.tobytes() for x in a] == [y.tobytes() for y in b]
    assert table_contents(best) == table_contents(baseline)


def test_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="isa is 'mmx'"):
        Table(BASE, isa="mmx")  # type: ignore[arg-type]


def test_threads_agree_bitwise() -> None:
    tables = [Table(replace(BASE, threads=n, counters=True)) for n in (1, 2, 5)]
    results = [train([t], 4, num_distinct=30000, samples=16384) for t in tables]
    for other in results[1:]:
        assert [x.tobytes() for x in other] == [x.tobytes() for x in results[0]]
    whole = [table_contents(t) for t in tables]
    assert whole[1] == whole[0]
    assert whole[2] == whole[0]
    assert list(whole[1]) == list(whole[0])  # even the order of the rows


def test_threads_agree_on_several_pulls_with_weights() -> None:
    """Slots that share a table: one push merges their rows, on whichever thread."""

    def run(threads: int) -> dict[int, bytes]:
        table = Table(replace(BASE, threads=threads, num_partitions=8), partitions=range(6))
        rng = np.random.default_rng(4)
        for step in range(3):
            handles, gradients = [], []
            for pooling in ("sum", "mean", "sum"):
                keys = skewed_keys(rng, 20_000, 9000)
                offsets = np.arange(0, 20_001, 4, dtype=np.int64)
                weights = rng.random(20_000).astype(np.float32)
                handle = table.pull(
                    keys,
                    offsets,
                    weights=weights,
                    pooling=pooling,  # type: ignore[arg-type]
                    out=np.empty((5000, 16), np.float32),
                )
                assert handle is not None
                handles.append(handle)
                gradients.append(rng.standard_normal((5000, 16)).astype(np.float32))
            table.push(handles, gradients, step=step)
        return table_contents(table)

    assert run(1) == run(2) == run(3)


def test_threads_with_shards_and_unknown_keys() -> None:
    config = replace(BASE, threads=2, admission=2)
    one = Table(replace(config, threads=1), partitions=range(20))
    two = Table(config, partitions=range(20))
    train([one], 4, num_distinct=30000, samples=16384)
    train([two], 4, num_distinct=30000, samples=16384)
    assert table_contents(two) == table_contents(one)


def test_concurrent_pulls_and_pushes() -> None:
    """Every push moves a row by one, so a lost update is a row that moved too little; every pull
    sees whole pushes, so all rows that it reads have moved by the same."""
    table = Table(replace(BASE, optimizer="sgd", lr=1.0, init="zeros"))
    keys = np.arange(20_000, dtype=np.uint64)
    num_pushes, wrong = 20, []

    def work(train: bool) -> None:
        for _ in range(num_pushes):
            out = np.empty((len(keys), 16), np.float32)
            handle = table.pull(keys, out=out, train=train)
            if (out != out[0, 0]).any():
                wrong.append(out)
            if handle is not None:
                table.push([handle], [np.full((len(keys), 16), -1, np.float32)], step=0)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert (table.read(keys)[1] == 2 * num_pushes).all()


def test_partitions_are_even_and_independent_of_the_index_hash() -> None:
    keys = np.arange(64_000, dtype=np.uint64)
    counts = np.bincount(partition_of(keys, 64), minlength=64)
    assert counts.min() > 850
    assert counts.max() < 1150
    assert (partition_of(keys, 64) != hash64(keys) % np.uint64(64)).mean() > 0.9


def test_initial_vectors_are_of_the_asked_distribution() -> None:
    keys = np.arange(4000, dtype=np.uint64)
    out = np.empty((4000, 16), np.float32)
    Table(TableConfig(dim=16, init="uniform", init_scale=0.5)).pull(keys, out=out)
    assert abs(out.mean()) < 0.01
    assert abs(out.std() - 0.5 / np.sqrt(3)) < 0.01
    assert np.abs(out).max() <= 0.5
    Table(TableConfig(dim=16, init="normal", init_scale=0.5)).pull(keys, out=out)
    assert abs(out.std() - 0.5) < 0.01
    assert len(np.unique(out)) > 63_000
    other = np.empty_like(out)
    Table(TableConfig(dim=16, init="normal", init_scale=0.5, name="b")).pull(keys, out=other)
    assert np.abs(np.corrcoef(out.ravel(), other.ravel())[0, 1]) < 0.02


def pooled(table: Table, seed: int) -> NDArray[np.float32]:
    """One training step with enough keys for several threads; what the pull gave."""
    keys = np.random.default_rng(seed).integers(0, 5000, 40_000).astype(np.uint64)
    out = np.empty((10_000, BASE.dim), np.float32)
    handle = table.pull(keys, np.arange(0, 40_001, 4, dtype=np.int64), out=out)
    assert handle is not None
    table.push([handle], [out * 0.5], step=seed)
    return out


def test_threads_serve_a_process_that_was_forked() -> None:
    table = Table(replace(BASE, threads=3))
    expected = Table(replace(BASE, threads=1))
    assert np.array_equal(pooled(table, 1), pooled(expected, 1))  # has started the threads
    wanted = pooled(expected, 2)
    child = os.fork()
    if child == 0:  # they are not there any more
        os._exit(0 if np.array_equal(pooled(table, 2), wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(pooled(table, 2), wanted)


def test_threads_are_shared_by_tables_that_work_at_once() -> None:
    def steps(threads: int) -> list[NDArray[np.float32]]:
        table = Table(replace(BASE, threads=threads))
        return [pooled(table, seed) for seed in range(30)]

    wanted = steps(1)
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(steps, [2, 3, 2, 4]):
            assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))
