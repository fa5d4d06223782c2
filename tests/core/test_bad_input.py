"""Bad input is refused with what, got and remedy, before anything changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from heterps_hpc.core import Table, TableConfig

KEYS = np.arange(4, dtype=np.uint64)


def out(rows: int = 4, cols: int = 2) -> Any:
    return np.zeros((rows, cols), np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": KEYS.astype(np.int64)}, "keys must be .* uint64 .* got int64"),
        ({"keys": np.arange(8, dtype=np.uint64)[::2]}, "contiguous"),
        ({"keys": KEYS.reshape(2, 2)}, "one-dimensional"),
        ({"out": out(3)}, r"shape \[4, 2\]"),
        ({"out": out().astype(np.float64)}, "float32"),
        ({"out": np.zeros((2, 4), np.float32).T}, "contiguous rows"),
        ({"out": out()[::-1]}, "contiguous rows"),
        ({"offsets": np.array([0, 2], np.int64)}, "end with the number of keys, 4"),
        ({"offsets": np.array([1, 4], np.int64)}, "start with 0"),
        ({"offsets": np.array([], np.int64)}, "start with 0"),
        ({"offsets": np.array([0, 3, 2, 4], np.int64), "out": out(3)}, "must not decrease"),
        ({"offsets": np.array([0, 4], np.int32), "out": out(1)}, "int64"),
        ({"offsets": [0, 4], "out": out(1)}, "numpy array"),
        ({"weights": np.ones(3, np.float32)}, "4 entries, got 3"),
        ({"weights": np.ones(4)}, "float32"),
        ({"pooling": "max"}, "'sum' or 'mean'"),
    ],
)
def test_pull(arguments: dict[str, Any], message: str) -> None:
    table = Table(TableConfig(dim=2))
    with pytest.raises(ValueError, match=message):
        table.pull(**{"keys": KEYS, "out": out(), **arguments})
    assert len(table) == 0


def test_read_only_out() -> None:
    fixed = out()
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        Table(TableConfig(dim=2)).pull(KEYS, out=fixed)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dim", [1, 2, 8, 13, 16])
def test_gradients_that_are_not_finite_change_nothing(bad: float, dim: int) -> None:
    table = Table(TableConfig(dim=dim))
    handle = table.pull(KEYS, out=np.zeros((4, dim), np.float32))
    assert handle is not None
    before = table.read(KEYS)[1].tobytes()
    gradient = np.ones((4, dim), np.float32)
    gradient[3, dim - 1] = bad
    with pytest.raises(ValueError, match="NaN or Inf; nothing was applied"):
        table.push([handle], [gradient], step=0)
    assert table.read(KEYS)[1].tobytes() == before
    gradient[3, dim - 1] = 0
    assert table.push([handle], [gradient], step=0)["rows"] == 4  # the handle is still good


def test_push_shapes() -> None:
    table = Table(TableConfig(dim=2))
    handle = table.pull(KEYS, out=out())
    assert handle is not None
    with pytest.raises(ValueError, match="1 handles and 0 gradients"):
        table.push([handle], [], step=0)
    with pytest.raises(ValueError, match=r"shape \[4, 2\]"):
        table.push([handle], [out(5)], step=0)
    with pytest.raises(ValueError, match="negative"):
        table.push([handle], [out()], step=-1)
    with pytest.raises(ValueError, match="lr must be"):
        table.push([handle], [out()], step=0, lr=float("nan"))
    with pytest.raises(ValueError, match="clicks must have 4"):
        table.push([handle], [out()], step=0, clicks=np.ones(3, np.float32))
    with pytest.raises(ValueError, match="clicks must have 4"):
        table.push([handle], [out()], step=0, clicks=[np.ones(3, np.float32)])
    with pytest.raises(ValueError, match="1 handles and 2 arrays of clicks"):
        table.push([handle], [out()], step=0, clicks=[np.ones(4, np.float32)] * 2)
    with pytest.raises(ValueError, match="one per handle, got"):
        table.push([handle], [out()], step=0, clicks=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim must be .* at least 1, got 0"),
        ({"dim": 2.5}, "whole number"),
        ({"hot_bytes": -1, "spill_path": "x"}, "hot_bytes must be"),
        ({"hot_bytes": 100}, "give both or neither"),
        ({"optimizer": "lion"}, "one of sgd, adagrad_rowwise, adagrad, adam, got 'lion'"),
        ({"lr": -1.0}, "lr must be zero or more"),
        ({"beta1": 1.0}, "beta1"),
        ({"min_score": 1.0}, "counters"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"show_decay": 0.0}, "show_decay"),
        ({"threads": 0}, "threads"),
        ({"sketch_bytes": 100}, "nothing to count"),
    ],
)
def test_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TableConfig(**{"dim": 2, **options})


def test_partitions() -> None:
    with pytest.raises(ValueError, match="below 64"):
        Table(TableConfig(dim=1), partitions=[64])
    with pytest.raises(ValueError, match="distinct"):
        Table(TableConfig(dim=1), partitions=[1, 1])
