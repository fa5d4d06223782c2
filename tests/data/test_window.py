"""Windows in memory: picked keys, shards laid out for reading, memory that is used again."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_hpc.dataset import (
    ColumnSelection,
    Dataset,
    Keys,
    Order,
    Reader,
    SampleRows,
    Schema,
    SlotSpec,
    offsets_of,
)
from heterps_hpc.dataset.columns import Ragged
from heterps_hpc.dataset.read import storage as storage_module
from heterps_hpc.dataset.read.buffer_pool import BufferPool
from heterps_hpc.dataset.read.storage import Storage
from heterps_hpc.dataset.read.window import LoadedWindow
from heterps_hpc.dataset.shard_schema import LIBVER, chunk_addresses, columns_of
from heterps_hpc.dataset.write import DatasetWriter
from tests.data.samples import assert_rows, assert_same_keys, write_mixed

EVERYTHING = ColumnSelection(
    ("one", "many", "heavy"), dense=True, labels=True, weight=True, group=True
)


EVEN = Schema(
    slots=(
        *(SlotSpec(name=name) for name in "abc"),
        SlotSpec(name="four", kind="many", weighted=True),
    ),
    dense_columns=("x",),
)


@given(
    lengths=st.one_of(
        st.lists(st.integers(0, 5), min_size=1, max_size=40),
        st.tuples(st.integers(0, 5), st.integers(1, 40)).map(lambda p: [p[0]] * p[1]),
    ),
    data=st.data(),
)
def test_picked_samples_have_their_keys(lengths: list[int], data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=60)), np.int64)
    keys = np.arange(sum(lengths), dtype=np.uint64)
    expected = Keys(keys, offsets_of(np.array(lengths))).pick(rows)
    ragged = Ragged(np.array(lengths, np.uint32))
    picked = ragged.pick(rows)
    found = picked.take(keys, np.empty(picked.num_keys, np.uint64))
    assert expected.offsets is not None
    assert picked.offsets.tolist() == expected.offsets.tolist()
    assert found.tolist() == expected.keys.tolist()
    assert ragged.offsets().tolist() == [0, *np.cumsum(lengths).tolist()]


@pytest.fixture
def even(tmp_path: Path) -> tuple[Dataset, SampleRows]:
    """Three slots of one key, one with always four, in blocks as large as real ones."""
    rng = np.random.default_rng(0)
    count = 2500
    rows = SampleRows(
        {
            **{name: Keys(rng.integers(0, 2**64, count, dtype=np.uint64)) for name in "abc"},
            "four": Keys(
                rng.integers(0, 2**64, 4 * count, dtype=np.uint64),
                np.arange(count + 1, dtype=np.int64) * 4,
                rng.random(4 * count, np.float32),
            ),
        },
        rng.random((count, 1), np.float32),
        rng.random((count, 1), np.float32),
    )
    with DatasetWriter(tmp_path / "d", EVEN, block_rows=1024, rows_per_shard=2100) as writer:
        writer.append(rows)
    return Dataset.open(tmp_path / "d", verify="checksums"), rows


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("slots", [("a", "b", "c", "four"), ("c", "a"), ("four",)])
def test_any_columns_of_side_by_side_ones(
    even: tuple[Dataset, SampleRows], shuffle: bool, slots: tuple[str, ...]
) -> None:
    dataset, rows = even
    want = ColumnSelection(slots, dense=True, labels="a" in slots)
    order = Order(dataset, 300, shuffle=shuffle, window_rows=2048)
    seen = 0
    with Reader(dataset, order, want, num_epochs=1) as batches:
        for batch in batches:
            expected = rows.pick(batch.sample_ids)
            assert batch.dense is not None
            assert batch.dense.tolist() == expected.dense.tolist()  # type: ignore[union-attr]
            for name in slots:
                for found, there in zip(batch.slots[name], expected.slots[name], strict=True):
                    assert (found is None) == (there is None)
                    assert found is None or found.tolist() == there.tolist()
            seen += len(batch.sample_ids)
    assert seen == 2500


def test_columns_of_a_block_lie_side_by_side_on_pages(even: tuple[Dataset, SampleRows]) -> None:
    dataset, _ = even
    storage = Storage(dataset, list(columns_of(dataset.manifest)))
    shard = storage.shard(0)
    groups = shard._blocks.groups(1)
    assert len(groups) == 1
    assert groups[0][1] - groups[0][0] == 6  # label, dense, three slots, the lengths of one
    assert all(place % 4096 == 0 for place in shard._chunks["slots/a/keys"])
    storage.close()


def rewrite_plainly(shard: Path, list_addresses: bool) -> None:
    """As writers did before chunks began on pages and lay side by side: column after column,
    wherever HDF5 puts them."""
    old = shard.rename(shard.with_suffix(".old"))
    with h5py.File(old) as source, h5py.File(shard, "w", libver=LIBVER) as target:
        target.attrs.update(source.attrs)
        target["padding"] = np.zeros(13, np.uint8)
        found: list[list[int]] = []
        for column in columns_of(EVEN):
            there = source[column.path]
            made = target.create_dataset(
                column.path,
                data=there[()],
                chunks=there.chunks,
                maxshape=(None, *there.shape[1:]),
            )
            found.append(chunk_addresses(made, 1024))
        target["slots/four/starts"] = source["slots/four/starts"][()]
        if list_addresses:
            target["chunk_counts"] = np.array([len(some) for some in found])
            target["chunk_addresses"] = np.concatenate(found)
    old.unlink()


@pytest.mark.parametrize("list_addresses", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_shards_with_chunks_anywhere_are_read(
    even: tuple[Dataset, SampleRows], list_addresses: bool, shuffle: bool
) -> None:
    dataset, rows = even
    manifest = json.loads((dataset.path / "manifest.json").read_text())
    for shard in manifest["shards"]:
        rewrite_plainly(dataset.path / shard["file"], list_addresses)
        shard["num_bytes"] = (dataset.path / shard["file"]).stat().st_size
    (dataset.path / "manifest.json").write_text(json.dumps(manifest))
    dataset = Dataset.open(dataset.path)
    storage = Storage(dataset, list(columns_of(dataset.manifest)))
    places = [place for some in storage.shard(0)._chunks.values() for place in some]
    assert any(place % 4096 for place in places)
    assert len(storage.shard(0)._blocks.groups(1)) > 1
    storage.close()
    seen = 0
    want = ColumnSelection(("a", "b", "c", "four"), dense=True, labels=True)
    order = Order(dataset, 300, shuffle=shuffle, window_rows=2048)
    with Reader(dataset, order, want, num_epochs=1) as batches:
        for batch in batches:
            expected = rows.pick(batch.sample_ids)
            assert np.array_equal(batch.dense, expected.dense)  # type: ignore[arg-type]
            assert np.array_equal(batch.labels, expected.labels)  # type: ignore[arg-type]
            for name, keys in expected.slots.items():
                assert_same_keys(batch.slots[name], keys)
            seen += len(batch.sample_ids)
    assert seen == 2500


def test_a_window_may_have_more_shards_than_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "_MAX_OPEN", 3)
    rows = write_mixed(tmp_path / "d", 400, rows_per_shard=40, block_rows=8)
    dataset = Dataset.open(tmp_path / "d")
    with Reader(dataset, Order(dataset, 64), EVERYTHING, num_epochs=1) as batches:
        for batch in batches:
            assert_rows(batch, rows.pick(batch.sample_ids))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_window_is_loaded_while_the_one_before_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    at_once: list[int] = []  # parts of each window that are left when it is needed
    most = 0  # of the other calls
    load = LoadedWindow.load

    def counted(window: LoadedWindow, num_parts: int | None = None) -> None:
        nonlocal most
        if num_parts is None:
            at_once.append(sum(1 for _ in window._parts))
        else:
            most = max(most, num_parts)
            load(window, num_parts)

    monkeypatch.setattr(LoadedWindow, "load", counted)
    rows = write_mixed(tmp_path / "d", 400, rows_per_shard=150, block_rows=16)
    dataset = Dataset.open(tmp_path / "d")
    order = Order(dataset, 32, shuffle=shuffle, window_rows=128)
    with Reader(dataset, order, EVERYTHING, num_epochs=2) as batches:
        for batch in batches:
            assert_rows(batch, rows.pick(batch.sample_ids))
    assert len(at_once) == 8
    assert at_once[0] > 4  # there is none before the first
    assert not any(at_once[1:])
    assert most < at_once[0]


def test_columns_as_they_lie_in_the_files_are_kept_of_one_window_only(tmp_path: Path) -> None:
    write_mixed(tmp_path / "d", 384, rows_per_shard=384, block_rows=16)
    dataset = Dataset.open(tmp_path / "d")
    order = Order(dataset, 32, window_rows=128)
    want = ColumnSelection(("one",), dense=True, labels=True)
    with Reader(dataset, order, want, num_epochs=3) as batches:
        assert sum(len(batch.sample_ids) for batch in batches) == 3 * 384
        assert len(batches._loader._memory.kept._buffers) == 1


@pytest.mark.parametrize(
    ("num_keys", "num_epochs", "prepared"),
    [(20, 1, 0), (20, 2, 1), (4, 2, 0)],
    ids=["one window only", "another window", "keys that are put in order when read"],
)
def test_memory_for_the_second_window_is_there_before_the_first_batch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_keys: int,
    num_epochs: int,
    prepared: int,
) -> None:
    rows = SampleRows(
        {
            "many": Keys(
                np.arange(128 * num_keys, dtype=np.uint64),
                np.arange(129, dtype=np.int64) * num_keys,
            )
        },
        labels=np.zeros((128, 1), np.float32),
    )
    schema = Schema(slots=(SlotSpec(name="many", kind="many"),))
    with DatasetWriter(tmp_path / "d", schema) as writer:
        writer.append(rows)
    dataset = Dataset.open(tmp_path / "d")
    found: list[int] = []  # buffers at each call
    prepare = BufferPool.prepare

    def watched(pool: BufferPool, num_bytes: int) -> None:
        found.append(len(pool._buffers))
        prepare(pool, num_bytes)

    monkeypatch.setattr(BufferPool, "prepare", watched)
    order = Order(dataset, 32)
    with Reader(dataset, order, ColumnSelection(("many",)), num_epochs=num_epochs) as batches:
        for batch in batches:
            assert_same_keys(batch.slots["many"], rows.pick(batch.sample_ids).slots["many"])
        assert found == [1] * prepared
        assert len(batches._loader._memory.kept._buffers) == num_epochs


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_batch_that_is_held_does_not_change(
    even: tuple[Dataset, SampleRows], shuffle: bool
) -> None:
    dataset, rows = even
    want = ColumnSelection(("a", "b", "c", "four"), dense=True)
    order = Order(dataset, 256, shuffle=shuffle, window_rows=1024)
    with Reader(dataset, order, want, num_epochs=3) as batches:
        held = list(batches)
    for batch in held:
        expected = rows.pick(batch.sample_ids)
        for name, keys in expected.slots.items():
            assert np.array_equal(batch.slots[name].keys, keys.keys)
