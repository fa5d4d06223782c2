"""Pushes without weights take shorter ways; they must give the bits of the general one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from heterps_hpc.core import Table, TableConfig

OPTIMIZERS = ("sgd", "adagrad_rowwise", "adagrad", "adam")
KEYS_PER_BATCH = 300


ONE_EACH = np.arange(KEYS_PER_BATCH + 1, dtype=np.int64)
UNEVEN = np.array([0, 0, 1, 40, 40, 41, 43, 290, 300, 300], np.int64)  # keys of a sample: 0 to 247

Read = tuple[NDArray[np.bool_], NDArray[np.float32], NDArray[np.float32]]


def train(
    config: TableConfig,
    offsets: NDArray[np.int64] | None,
    *,
    weighted: bool = False,
    snapshot: bool = False,
) -> Read:
    """Some batches with many duplicates and some keys of partitions that are not held; weights,
    which are all one, make the push take the general way."""
    table = Table(config, partitions=range(60))
    rng = np.random.default_rng(5)
    num_samples = KEYS_PER_BATCH if offsets is None else len(offsets) - 1
    out = np.empty((num_samples, config.dim), np.float32)
    weights = np.ones(KEYS_PER_BATCH, np.float32) if weighted else None
    for step in range(4):
        keys = rng.zipf(1.3, KEYS_PER_BATCH).astype(np.uint64)
        gradient = rng.standard_normal((num_samples, 2 * config.dim)).astype(np.float32)
        handle = table.pull(keys, offsets, weights, out=out)
        assert handle is not None
        view = table.snapshot() if snapshot else None
        table.push([handle], [gradient[:, config.dim :]], step=step)
        if view is not None:
            view.close()
    return table.read(np.arange(1, 1000, dtype=np.uint64))


def same(one: Read, other: Read) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dim", [1, 5, 16, 64])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_same_bits(optimizer: str, dim: int) -> None:
    config = TableConfig(dim=dim, optimizer=optimizer, clip_norm=1.5, weight_decay=0.01)
    general = train(config, ONE_EACH, weighted=True)
    uneven = train(config, UNEVEN, weighted=True)
    assert not same(general, uneven)
    for snapshot in (False, True):
        assert same(train(config, None, snapshot=snapshot), general)
        assert same(train(config, ONE_EACH, snapshot=snapshot), general)
        assert same(train(config, UNEVEN, snapshot=snapshot), uneven)


@pytest.mark.parametrize("dim", [3, 16])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("offsets", [None, np.array([0, 1, 1, 3, 4])])
def test_a_bad_gradient_anywhere_is_refused_whole(
    offsets: NDArray[np.int64] | None, bad: float, dim: int
) -> None:
    keys = np.array([1, 2, 1, 3], np.uint64)
    table = Table(TableConfig(dim=dim, optimizer="sgd"))
    handle = table.pull(keys, offsets, out=np.empty((4, dim), np.float32))
    assert handle is not None
    before = table.read(keys)[1]
    for sample in range(4):
        gradient = np.ones((4, dim), np.float32)
        gradient[sample, dim - 1] = bad
        with pytest.raises(ValueError, match="NaN or Inf"):
            table.push([handle], [gradient], step=0)
        assert (table.read(keys)[1] == before).all()
    table.push([handle], [np.ones((4, dim), np.float32)], step=0)
    assert (table.read(keys)[1] != before).all()


def test_a_bad_gradient_of_a_key_without_a_row_is_refused_too() -> None:
    table = Table(TableConfig(dim=2, admission=2))
    handle = table.pull(np.array([1], np.uint64), out=np.empty((1, 2), np.float32))
    assert handle is not None
    with pytest.raises(ValueError, match="NaN or Inf"):
        table.push([handle], [np.full((1, 2), np.nan, np.float32)], step=0)


def test_rows_with_a_bad_sum_are_skipped_and_counted() -> None:
    keys = np.array([1, 2, 1], np.uint64)
    table = Table(TableConfig(dim=16, optimizer="sgd", lr=1.0, nonfinite="skip"))
    handle = table.pull(keys, out=np.empty((3, 16), np.float32))
    assert handle is not None
    before = table.read(keys)[1]
    gradient = np.ones((3, 16), np.float32)
    gradient[2, 7] = np.inf
    assert table.push([handle], [gradient], step=0)["nonfinite_skipped"] == 1
    after = table.read(keys)[1]
    assert (after[0] == before[0]).all()
    assert (after[1] == before[1] - 1).all()
