"""Random operations on the table and on a plain dict must agree: with tiers and without,
whatever the optimizer, admission, eviction, threads, batch shapes and pulls in flight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps_hpc.core import Pulled, Table, TableConfig
from tests.core.reference import Batch, DictTable, Floats

RELAXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]

configs = st.fixed_dictionaries(
    {
        "dim": st.sampled_from([1, 2, 3, 5, 8, 16, 17]),
        "optimizer": st.sampled_from(["sgd", "adagrad_rowwise", "adagrad", "adam"]),
        "weight_decay": st.sampled_from([0.0, 0.01]),
        "clip_norm": st.sampled_from([None, 0.5]),
        "initial_accumulator": st.sampled_from([0.0, 0.1]),
        "admission": st.sampled_from([1, 2, 4]),
        "max_age": st.sampled_from([None, 1, 3]),
        "evict_every": st.sampled_from([1, 3]),
        "num_partitions": st.sampled_from([1, 4, 64]),
        "init": st.sampled_from(["uniform", "normal", "zeros"]),
    }
)


@st.composite
def batches(draw: st.DrawFn, dim: int) -> tuple[Batch, Floats]:
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    num_keys = sum(sizes)
    keys = draw(st.lists(st.integers(0, 30), min_size=num_keys, max_size=num_keys))
    seed = draw(st.integers(0, 1 << 20))
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(num_keys) if draw(st.booleans()) else np.ones(num_keys)
    offsets = [0, *np.cumsum(sizes).tolist()]
    gradient = rng.standard_normal((len(sizes), dim))
    return Batch(keys, offsets, weights, draw(st.booleans())), gradient


def pull(table: Table, batch: Batch) -> tuple[Pulled, Floats]:
    wide = np.full((len(batch.offsets) - 1, table.config.dim + 3), np.nan)
    out = wide[:, 1 : 1 + table.config.dim]
    keys, offsets = np.array(batch.keys, np.uint64), np.array(batch.offsets, np.int64)
    pooling = "mean" if batch.mean else "sum"
    handle = table.pull(keys, offsets, batch.weights, pooling, out=out)  # type: ignore[arg-type]
    assert handle is not None
    return handle, out


def check_same(table: Table, model: DictTable) -> None:
    assert len(table) == len(model.rows)
    keys = np.array(sorted(model.rows), np.uint64)
    found, vectors, state = table.read(keys)
    assert found.all()
    for i, key in enumerate(keys):
        np.testing.assert_allclose(vectors[i], model.rows[int(key)].vector, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state[i], model.rows[int(key)].state, rtol=1e-9, atol=1e-12)
    saved = table.snapshot()
    for part in saved.partitions():
        for rows in saved.read(part, max_rows=3):
            for i, key in enumerate(rows.keys):
                row = model.rows[int(key)]
                assert rows.counters["show"][i] == pytest.approx(row.show, rel=1e-5)
                assert rows.counters["step"][i] == row.step
    saved.close()


@pytest.mark.parametrize("tiers", [False, True])
@settings(max_examples=40, deadline=None, suppress_health_check=RELAXED)
@given(data=st.data(), options=configs)
def test_random_operations(
    data: st.DataObject, options: dict[str, Any], tiers: bool, tmp_path: Path
) -> None:
    plain = TableConfig(dtype="float64", lr=0.1, eps=1e-6, counters=True, show_decay=0.9, **options)
    spill: dict[str, Any] = {"hot_bytes": 600, "spill_path": tmp_path / "spill"} if tiers else {}
    table = Table(TableConfig(**{**vars(plain), **spill}))
    model = DictTable(plain)
    flying: list[tuple[Batch, Floats, Pulled]] = []
    for step in range(data.draw(st.integers(1, 8))):
        slots = [data.draw(batches(plain.dim)) for _ in range(data.draw(st.integers(1, 2)))]
        for batch, gradient in slots:
            table.prefetch(np.array(batch.keys, np.uint64))
            handle, out = pull(table, batch)
            np.testing.assert_allclose(out, model.pull(batch), rtol=1e-9, atol=1e-12)
            flying.append((batch, gradient, handle))
        if data.draw(st.booleans()):  # else the batch stays in flight
            model.push([b for b, _, _ in flying], [g for _, g, _ in flying], step)
            table.push([h for _, _, h in flying], [g for _, g, _ in flying], step=step)
            flying.clear()
        check_same(table, model)
