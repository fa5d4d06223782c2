"""Vectors of two bytes: rounded as the definition says, the same on every layout, and unbiased."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_hpc.core import Rows, Table, TableConfig, partition_of
from tests.core.workload import table_contents, train
from tests.half_precision import FORMATS, by_chance, to_nearest

KEYS = np.arange(1, 301, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
HALVES = pytest.mark.parametrize("precision", FORMATS)


def load(table: Table, keys: Any, vectors: Any) -> None:
    for part in np.unique(parts := partition_of(keys, table.config.num_partitions)):
        mine = parts == part
        state = np.zeros((mine.sum(), table.state_dim), np.float32)
        table.load(int(part), Rows(keys[mine], vectors[mine], state, {}))


@HALVES
@pytest.mark.parametrize("isa", ["baseline", "auto"])
@pytest.mark.parametrize("dim", [1, 7, 16, 64])
def test_new_loaded_and_updated_rows_round_by_the_definition(
    dim: int, isa: Any, precision: Any
) -> None:
    table = Table(TableConfig(dim, "t", "sgd", lr=1.0, seed=3, precision=precision), isa=isa)
    exact = Table(TableConfig(dim, "t", "sgd", seed=3))
    out, drawn = np.empty((2, len(KEYS), dim), np.float32)
    table.pull(KEYS, out=out)
    exact.pull(KEYS, out=drawn)
    np.testing.assert_array_equal(out, to_nearest(drawn, precision))

    rng = np.random.default_rng(dim)
    size = 10.0 ** rng.uniform(-12, 8, out.shape)
    loaded = (rng.choice([-1.0, 1.0], out.shape) * size).astype(np.float32)
    loaded[:3] = [[0.0], [-0.0], [3e38]]
    load(table, KEYS, loaded)
    before = table.read(KEYS)[1]
    np.testing.assert_array_equal(before, to_nearest(loaded, precision))

    handle = table.pull(KEYS, out=out)
    assert handle is not None
    gradient = (before * rng.standard_normal(out.shape) * 1e-3).astype(np.float32)
    gradient[2] = 0  # its square would not be finite
    table.push([handle], [gradient], step=8)
    expected = by_chance(before - gradient, KEYS, "t", 3, 8, precision)
    np.testing.assert_array_equal(table.read(KEYS)[1], expected)


@HALVES
def test_several_pulls_pushed_together_round_by_key(precision: Any) -> None:
    table = Table(TableConfig(16, "t", "sgd", lr=1.0, seed=3, precision=precision))
    out = np.empty((len(KEYS), 16), np.float32)
    # Pulled first, so that the memory of their handles is used again, for fewer keys.
    for handle in [table.pull(KEYS, out=out) for _ in range(3)]:
        assert handle is not None
        table.discard(handle)
    before = table.read(KEYS)[1]
    pulled, gradients = [], []
    for keys in (KEYS[:200], KEYS[:0], KEYS[:99:-1].copy()):  # the middle ones twice
        handle = table.pull(keys, out=out[: len(keys)])
        assert handle is not None
        pulled.append(handle)
        gradients.append(np.full((len(keys), 16), 2.0**-14, np.float32))
    table.push(pulled, gradients, step=8)
    merged = np.full_like(before, 2.0**-14)
    merged[100:200] *= 2
    expected = by_chance(before - merged, KEYS, "t", 3, 8, precision)
    np.testing.assert_array_equal(table.read(KEYS)[1], expected)


@HALVES
@pytest.mark.parametrize("optimizer", ["adagrad_rowwise", "adagrad", "adam"])
def test_many_small_updates_add_up(optimizer: Any, precision: Any) -> None:
    """Each is below half the distance of two numbers: rounded to the nearest, none would count."""
    rows = [
        Table(TableConfig(16, "t", optimizer, lr=2e-5, init_scale=0.5, precision=each))
        for each in (None, precision)
    ]
    out = np.empty((len(KEYS), 16), np.float32)
    for table in rows:
        load(table, KEYS, np.ones_like(out))
        for step in range(100):
            handle = table.pull(KEYS, out=out)
            assert handle is not None
            table.push([handle], [np.ones_like(out)], step=step)
    full, half = (table.read(KEYS)[1].mean() for table in rows)
    assert full < 0.9997
    assert half - 1 == pytest.approx(full - 1, rel=0.1)


@HALVES
def test_shards_threads_tiers_and_a_reload_learn_the_same_bits(
    precision: Any, tmp_path: Path
) -> None:
    def config(**options: Any) -> TableConfig:
        return TableConfig(dim=12, num_partitions=8, precision=precision, **options)

    whole = Table(config())
    cold = config(hot_bytes=20_000, spill_path=tmp_path / "spill")
    others = [
        [Table(config(), partitions=part) for part in (range(3), range(3, 8))],
        [Table(config(threads=2))],
        [Table(cold)],
        [Table(config(), isa="baseline")],
    ]
    train([whole], 4, 2000, samples=8000)
    expected = table_contents(whole)
    for tables in others:
        train(tables, 4, 2000, samples=8000)
        assert table_contents(*tables) == expected
    again = Table(config())
    with whole.snapshot() as snapshot:
        for part in snapshot.partitions():
            for rows in snapshot.read(part):
                again.load(part, rows)
    assert table_contents(again) == expected


def test_rows_are_half_as_wide_and_state_is_not() -> None:
    assert Table(TableConfig(dim=16, precision="float16")).row_bytes == 32 + 4 + 4 + 8
    assert Table(TableConfig(dim=3, precision="bfloat16")).row_bytes == 8 + 4 + 4 + 8


def test_what_precision_may_not_be() -> None:
    with pytest.raises(ValueError, match="precision must be one of float16, bfloat16"):
        TableConfig(dim=4, precision="float8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dtype must be float32 where precision is given"):
        TableConfig(dim=4, dtype="float64", precision="float16")
