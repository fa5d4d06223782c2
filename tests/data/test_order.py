"""Every rank sees its rows of every batch, every sample once per epoch, from any position on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_hpc.counter_rng import permutation
from heterps_hpc.dataset import Batch, ColumnSelection, Dataset, Order, Position, Reader
from heterps_hpc.errors import UserError
from heterps_hpc.row_ranges import replica_ranges
from tests.data.samples import assert_rows, mixed_rows, write_mixed

EVERYTHING = ColumnSelection(
    ("one", "many", "heavy"), dense=True, labels=True, weight=True, group=True
)
NUM_ROWS = 613
GOLDEN = [67, 78, 61, 49, 406, 65, 269, 313]


@pytest.fixture(scope="module")
def dataset() -> Iterator[Dataset]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "d"
        write_mixed(path, NUM_ROWS, rows_per_shard=250, block_rows=16)
        yield Dataset.open(path)


orders = st.builds(
    dict,
    batch_size=st.integers(1, 700),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
    window_rows=st.integers(1, 700),
    drop_last=st.booleans(),
)


def read(dataset: Dataset, order: Order, **options: object) -> list[Batch]:
    with Reader(dataset, order, EVERYTHING, **options) as reader:  # type: ignore[arg-type]
        return list(reader)


def usable(options: dict[str, object]) -> bool:
    return not (options["drop_last"] and int(str(options["batch_size"])) > NUM_ROWS)


@settings(max_examples=25, deadline=None)
@given(options=orders.filter(usable), ranks=st.integers(1, 5), micro_batches=st.integers(1, 4))
def test_every_sample_exactly_once(
    dataset: Dataset, options: dict[str, object], ranks: int, micro_batches: int
) -> None:
    order = Order(dataset, **options)  # type: ignore[arg-type]
    whole = read(dataset, order, num_epochs=1)
    expected = mixed_rows(NUM_ROWS)
    ids = np.concatenate([batch.sample_ids for batch in whole])
    assert len(np.unique(ids)) == len(ids) == order.used_rows
    assert [len(batch.sample_ids) for batch in whole] == [
        order.batch_rows(index) for index in range(order.num_batches)
    ]
    per_rank = [
        read(
            dataset,
            order,
            num_epochs=1,
            rows=lambda n, rank=rank: replica_ranges(n, micro_batches, ranks, rank),
        )
        for rank in range(ranks)
    ]
    for index, batch in enumerate(whole):
        mine = [seen[index] for seen in per_rank]
        assert all(part.num_rows == batch.num_rows == len(batch.sample_ids) for part in mine)
        for part in mine:
            assert_rows(part, expected.pick(part.sample_ids))
        for rank, part in enumerate(mine):
            ranges = replica_ranges(batch.num_rows, micro_batches, ranks, rank)
            wanted = np.concatenate([batch.sample_ids[lo:hi] for lo, hi in ranges])
            np.testing.assert_array_equal(part.sample_ids, wanted)


@settings(max_examples=25, deadline=None)
@given(options=orders.filter(usable), data=st.data())
def test_resume_at_any_position(
    dataset: Dataset, options: dict[str, object], data: st.DataObject
) -> None:
    order = Order(dataset, **options)  # type: ignore[arg-type]
    whole = read(dataset, order, num_epochs=2)
    skip = data.draw(st.integers(0, len(whole) - 1))
    with Reader(dataset, order, EVERYTHING, num_epochs=2) as reader:
        for _ in range(skip):
            next(reader)
        position = reader.position
    rest = read(dataset, order, num_epochs=2, start=position)
    assert [(b.epoch, b.index) for b in rest] == [(b.epoch, b.index) for b in whole[skip:]]
    for got, expected in zip(rest, whole[skip:], strict=True):
        np.testing.assert_array_equal(got.sample_ids, expected.sample_ids)
        np.testing.assert_array_equal(got.dense, expected.dense)


def test_same_seed_same_order_other_seed_other_order(dataset: Dataset) -> None:
    def ids(seed: int, epoch: int) -> np.ndarray:
        order = Order(dataset, 50, seed, window_rows=128)
        batches = read(dataset, order, start=Position(epoch, 0), num_epochs=epoch + 1)
        return np.concatenate([batch.sample_ids for batch in batches])

    np.testing.assert_array_equal(ids(1, 0), ids(1, 0))
    assert not np.array_equal(ids(1, 0), ids(2, 0))
    assert not np.array_equal(ids(1, 0), ids(1, 1))


def test_the_order_is_fixed_for_ever(dataset: Dataset) -> None:
    # a checkpoint's position must mean the same rows in a later release
    first = next(iter(read(dataset, Order(dataset, 8, seed=1, window_rows=128), num_epochs=1)))
    assert first.sample_ids.tolist() == GOLDEN


def test_rows_are_well_mixed(dataset: Dataset) -> None:
    # neighbours in a batch come from many blocks, and each place of the epoch from everywhere
    order = Order(dataset, 64, seed=0, window_rows=256)
    for batch in read(dataset, order, num_epochs=1)[:-1]:
        assert len(np.unique(batch.sample_ids // 16)) > 10
    means = [
        read(dataset, Order(dataset, 64, seed=seed, window_rows=256), num_epochs=1)[
            0
        ].sample_ids.mean()
        for seed in range(40)
    ]
    assert abs(np.mean(means) - NUM_ROWS / 2) < 40


@given(seed=st.integers(0, 2**64 - 1), count=st.integers(0, 3000))
@settings(deadline=None)
def test_permutation(seed: int, count: int) -> None:
    np.testing.assert_array_equal(np.sort(permutation(seed, count)), np.arange(count))


def test_permutation_is_uniform() -> None:
    counts = np.zeros((5, 5))
    for seed in range(5000):
        counts[np.arange(5), permutation(seed, 5)] += 1
    assert np.all(np.abs(counts - 1000) < 150)


def test_no_whole_batch_is_refused(dataset: Dataset) -> None:
    with pytest.raises(UserError, match="no whole batch of 1000"):
        Order(dataset, 1000, drop_last=True)
    assert Order(dataset, 1000).batch_rows(0) == NUM_ROWS


def test_positions(dataset: Dataset) -> None:
    order = Order(dataset, 100)
    assert order.num_batches == 7
    assert order.batch_rows(6) == 13
    assert order.advance(Position(0, 6)) == Position(1, 0)
    assert order.advance(Position(1, 2), 10) == Position(2, 5)
    with pytest.raises(UserError, match="epochs of 7 batches"):
        Reader(dataset, order, EVERYTHING, start=Position(0, 7))
