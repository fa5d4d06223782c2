"""What is written is what is read, and the manifest tells the truth about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterps_hpc.dataset import ColumnSelection, Dataset, Keys, Order, Reader, SampleRows
from heterps_hpc.dataset.write import DatasetWriter
from heterps_hpc.errors import UserError
from tests.data.samples import MIXED, assert_rows, mixed_rows, write_mixed

EVERYTHING = ColumnSelection(
    ("one", "many", "heavy"), dense=True, labels=True, weight=True, group=True
)


@pytest.mark.parametrize("compression", ["none", "lzf", "lz4", "zstd"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_round_trip(tmp_path: Path, compression: str, shuffle: bool) -> None:
    rows = write_mixed(
        tmp_path / "d", 1000, rows_per_shard=300, block_rows=16, compression=compression
    )
    dataset = Dataset.open(tmp_path / "d", verify="checksums")
    order = Order(dataset, 64, seed=3, shuffle=shuffle, window_rows=100)
    with Reader(dataset, order, EVERYTHING, num_epochs=1) as reader:
        for batch in reader:
            assert_rows(batch, rows.pick(batch.sample_ids))


def test_arrays_are_ready_to_use(tmp_path: Path) -> None:
    write_mixed(tmp_path / "d", 200, block_rows=16)
    dataset = Dataset.open(tmp_path / "d")
    with Reader(dataset, Order(dataset, 50), EVERYTHING, num_epochs=1) as reader:
        batch = next(reader)
    heavy = batch.slots["heavy"]
    for array, dtype in (
        (batch.dense, np.float32),
        (batch.labels, np.float32),
        (batch.weight, np.float32),
        (batch.sample_ids, np.int64),
        (batch.slots["one"].keys, np.uint64),
        (heavy.keys, np.uint64),
        (heavy.offsets, np.int64),
        (heavy.weights, np.float32),
    ):
        assert array is not None
        assert array.dtype == dtype
        assert array.flags.c_contiguous


def test_a_reader_gives_only_what_is_wanted(tmp_path: Path) -> None:
    write_mixed(tmp_path / "d", 50)
    dataset = Dataset.open(tmp_path / "d")
    with Reader(dataset, Order(dataset, 50), ColumnSelection(("many",)), num_epochs=1) as reader:
        batch = next(reader)
    assert set(batch.slots) == {"many"}
    assert batch.dense is None
    assert batch.labels is None


def test_manifest_counts(tmp_path: Path) -> None:
    rows = write_mixed(tmp_path / "d", 1000, rows_per_shard=300, block_rows=16)
    manifest = Dataset.open(tmp_path / "d").manifest
    assert manifest.num_rows == 1000
    assert [shard.num_rows for shard in manifest.shards] == [300, 300, 300, 100]
    assert rows.labels is not None
    assert manifest.label_means == pytest.approx(tuple(rows.labels.mean(axis=0)), abs=1e-6)
    for slot in manifest.slots:
        keys = rows.slots[slot.name].keys
        assert slot.cardinality == len(np.unique(keys))
        assert slot.mean_keys == pytest.approx(len(keys) / 1000)


@pytest.mark.parametrize("distinct", [5000, 60_000, 400_000])
def test_large_cardinality_is_estimated(tmp_path: Path, distinct: int) -> None:
    keys = np.random.default_rng(0).permutation(np.arange(distinct, dtype=np.uint64))
    rows = SampleRows({"one": Keys(keys)}, None, np.zeros((distinct, 1), np.float32))
    schema = MIXED.model_copy(
        update={"slots": MIXED.slots[:1], "dense_columns": (), "labels": ("y",)}
        | {"has_weight": False, "has_group": False}
    )
    with DatasetWriter(tmp_path / "d", schema, rows_per_shard=distinct // 3) as writer:
        writer.append(rows)
    assert writer.manifest.slots[0].cardinality == pytest.approx(distinct, rel=0.03)


def test_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    def fingerprint(name: str, **options: object) -> str:
        write_mixed(tmp_path / name, 500, rows_per_shard=200, block_rows=16, **options)
        return Dataset.open(tmp_path / name).manifest.fingerprint()

    first = fingerprint("a")
    assert fingerprint("b", step=11) == first
    assert fingerprint("c", compression="zstd") == first
    with DatasetWriter(tmp_path / "x", MIXED, rows_per_shard=200, block_rows=16) as writer:
        writer.append(mixed_rows(500, seed=1))
    assert writer.manifest.fingerprint() != first


def test_key_sample_holds_all_keys_of_a_small_slot(tmp_path: Path) -> None:
    rows = write_mixed(tmp_path / "d", 1000, rows_per_shard=300)
    sample = Dataset.open(tmp_path / "d").key_sample("heavy")
    np.testing.assert_array_equal(np.sort(sample), np.sort(rows.slots["heavy"].keys))


def test_key_sample_is_uniform_over_occurrences(tmp_path: Path) -> None:
    # key 0 in the first half of the rows only, key 1 in the other: a fair sample has as many of
    # each, whichever shard they are in
    count = 400_000
    keys = (np.arange(count) >= count // 2).astype(np.uint64)
    schema = MIXED.model_copy(
        update={"slots": MIXED.slots[:1], "dense_columns": (), "labels": ("y",)}
        | {"has_weight": False, "has_group": False}
    )
    with DatasetWriter(tmp_path / "d", schema, rows_per_shard=90_000) as writer:
        writer.append(SampleRows({"one": Keys(keys)}, None, np.zeros((count, 1), np.float32)))
    sample = Dataset.open(tmp_path / "d").key_sample("one")
    assert len(sample) == 65_536
    assert abs(float(sample.mean()) - 0.5) < 5 * 0.5 / 256


def test_wrong_columns_are_refused_by_name(tmp_path: Path) -> None:
    rows = mixed_rows(10)
    writer = DatasetWriter(tmp_path / "d", MIXED)
    with pytest.raises(ValueError, match="slots"):
        writer.append(SampleRows({"one": rows.slots["one"]}, rows.dense, rows.labels))
    with pytest.raises(ValueError, match="dense must have the shape"):
        writer.append(
            SampleRows(rows.slots, rows.dense[:, :2], rows.labels, rows.weight, rows.group)
        )
    with pytest.raises(ValueError, match="weight is required"):
        writer.append(SampleRows(rows.slots, rows.dense, rows.labels, None, rows.group))


def test_an_error_leaves_no_dataset(tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with DatasetWriter(tmp_path / "d", MIXED) as writer:
            writer.append(mixed_rows(10))
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail_half_way()
    assert list((tmp_path / "d").iterdir()) == []
    with pytest.raises(UserError, match="did not finish"):
        Dataset.open(tmp_path / "d")


def test_a_dataset_is_not_overwritten(tmp_path: Path) -> None:
    write_mixed(tmp_path / "d", 10)
    with pytest.raises(UserError, match="there is a dataset already"):
        DatasetWriter(tmp_path / "d", MIXED)


def test_no_rows_make_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no rows to write"), DatasetWriter(tmp_path / "d", MIXED):
        pass
