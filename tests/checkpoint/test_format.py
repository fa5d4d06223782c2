"""What is written is read back, by us and by any HDF5 tool; other formats are refused by name."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from urllib.parse import quote

import h5py
import numpy as np
import pytest

from heterps_hpc.checkpoint import (
    Checkpoint,
    Contents,
    Manifest,
    PlannedArray,
    ShardWriter,
    manifest,
    newest,
    store,
)
from heterps_hpc.checkpoint.manifest import ArraySpec, ShardSpec
from heterps_hpc.checkpoint.store import keep_last, steps_of
from heterps_hpc.checkpoint.verify import verify
from heterps_hpc.errors import UserError
from tests.checkpoint.made import (
    NUM_PARTITIONS,
    TABLES,
    dense_values,
    make_checkpoint,
    table_rows,
)


@pytest.mark.parametrize("num_shards", [1, 2, 6])
def test_content_comes_back_whatever_the_shards(tmp_path: Path, num_shards: int) -> None:
    checkpoint = make_checkpoint(tmp_path, num_shards=num_shards)
    assert verify(checkpoint).problems == []
    with Contents(checkpoint) as contents:
        for table in TABLES:
            for partition in range(NUM_PARTITIONS):
                expected = table_rows(table, partition, 60, seed=0)
                blocks = list(contents.rows(table, partition, max_rows=4))
                for column, value in expected.items():
                    found = [block[column] for block in blocks] or [value[:0]]
                    assert np.array_equal(np.concatenate(found), value)
        for name, value in dense_values(0).items():
            assert np.array_equal(contents.dense(name)["value"], value)


def test_any_hdf5_tool_reads_a_shard(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, num_shards=1)
    (shard,) = checkpoint.manifest.shards
    with h5py.File(checkpoint.path / shard.file) as file:
        assert file.attrs["format"] == "heterps-checkpoint"
        assert file.attrs["step"] == 7
        for name, value in dense_values(0).items():
            assert np.array_equal(file[f"dense/{name}/value"][()], value)
        vectors = file[f"table/{quote('user')}/vectors"]
        assert vectors.shape == (checkpoint.manifest.num_rows("user"), 4)


def test_arrays_without_rows_are_kept(tmp_path: Path) -> None:
    plan = PlannedArray("table", "empty", "keys", np.dtype(np.uint64), (0,))
    with ShardWriter(tmp_path / "a.h5", 0, [plan], {}) as writer:
        writer.write(plan, 3, np.empty(0, np.uint64))
        spec = writer.close()
    assert spec.arrays[0].segments[0].num_rows == 0


def test_a_writer_that_gives_up_leaves_nothing(tmp_path: Path) -> None:
    plan = PlannedArray("dense", "w", "value", np.dtype(np.float32), (8,))
    with ShardWriter(tmp_path / "a.h5", 0, [plan], {}) as writer:
        writer.write(plan, 0, np.zeros(3, np.float32))
        with pytest.raises(ValueError, match="3 of 8 rows"):
            writer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros(9, np.float32), "more than the 8 rows"),
        (np.zeros(8, np.float64), "planned"),
        (np.zeros((8, 2), np.float32), "planned"),
    ],
)
def test_a_writer_refuses_what_was_not_planned(
    tmp_path: Path, rows: np.ndarray, message: str
) -> None:
    plan = PlannedArray("dense", "w", "value", np.dtype(np.float32), (8,))
    with (
        ShardWriter(tmp_path / "a.h5", 0, [plan], {}) as writer,
        pytest.raises(ValueError, match=message),
    ):
        writer.write(plan, 0, rows)


def test_versions_to_come_are_refused_by_name(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path).path / "manifest.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"version": 3}))
    with pytest.raises(UserError, match=r"format version 3; this program reads versions 1 to 2"):
        Checkpoint.open(path.parent)


@pytest.mark.parametrize("version", [1, 2])
def test_every_version_stays_readable(version: int) -> None:
    """Written by that version of the format and kept as it was."""
    checkpoint = Checkpoint.open(Path(__file__).with_name("golden") / f"v{version}")
    findings = verify(checkpoint)
    assert findings.problems == []
    with Contents(checkpoint) as contents:
        for name, value in dense_values(1).items():
            assert np.array_equal(contents.dense(name)["value"], value)
        rows = np.concatenate(
            [block["keys"] for p in range(NUM_PARTITIONS) for block in contents.rows("user", p)]
        )
        assert len(rows) == checkpoint.manifest.num_rows("user") == 8


def test_the_newest_n_are_kept_and_torn_ones_swept(tmp_path: Path) -> None:
    for step in (3, 6, 9):
        make_checkpoint(tmp_path, step)
    (tmp_path / "000000005").mkdir()  # a save that was killed, long ago
    (tmp_path / "000000012").mkdir()  # a save under way
    assert sorted(keep_last(tmp_path, 2)) == [3, 5]
    assert steps_of(tmp_path) == [6, 9]
    assert (tmp_path / "000000012").is_dir()
    found = newest(tmp_path)
    assert found is not None
    assert found.step == 9


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step again"])
def test_a_publish_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """The manifest is written, and then the disk fails."""
    if again:
        make_checkpoint(tmp_path, 7, seed=1, token="aaaa0000")

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(store, "sync_directory", fail)
    with pytest.raises(OSError, match="Input/output"):
        make_checkpoint(tmp_path, 7, seed=2, token="bbbb0000")
    monkeypatch.undo()
    files = [f"rank-{rank:05d}-bbbb0000.h5" for rank in range(2)]
    store.discard(tmp_path / "000000007", files)  # as the saver does
    found = newest(tmp_path)
    assert (found is not None) == again
    if found is not None:
        assert verify(found).problems == []
        assert {shard.file[-11:-3] for shard in found.manifest.shards} == {"aaaa0000"}


def test_a_manifest_that_could_not_be_loaded_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, 7)
    monkeypatch.setattr(manifest, "MAX_MANIFEST_BYTES", 999)
    with pytest.raises(UserError, match=r"step 8 .* use fewer partitions"):
        make_checkpoint(tmp_path, 8)
    monkeypatch.undo()
    found = newest(tmp_path)
    assert found is not None
    assert found.step == 7


def test_a_partition_is_found_without_a_look_at_all_others(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, num_shards=1, num_rows=0)
    (shard,) = checkpoint.manifest.shards
    many = tuple(manifest.Segment(number, 0, 0, "0" * 16) for number in range(8192))
    arrays = [array.model_copy(update={"segments": many}) for array in shard.arrays[:4]]
    shards = (shard.model_copy(update={"arrays": tuple(arrays)}),)
    changed = checkpoint.manifest.model_copy(update={"shards": shards})
    with Contents(Checkpoint(checkpoint.path, changed)) as contents:
        began = time.process_time()
        for number in range(len(many)):
            found = contents.columns(arrays[0].name, number)
            assert {segment for _, segment in found.values()} == {many[number]}
    assert time.process_time() - began < 1.0


def test_what_a_manifest_lists_is_never_discarded(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path)
    store.discard(checkpoint.path, [shard.file for shard in checkpoint.manifest.shards])
    assert verify(Checkpoint.open(checkpoint.path)).problems == []


def test_a_sweep_that_fails_is_no_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_checkpoint(tmp_path, seed=1, token="aaaa0000")

    def fail(directory: Path, kept: set[str]) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(store, "_sweep", fail)
    again = make_checkpoint(tmp_path, seed=2, token="bbbb0000")
    assert verify(again).problems == []
    assert "Input/output" in caplog.text


def test_saving_a_step_again_replaces_it_at_once(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, seed=1, token="aaaa0000")
    again = make_checkpoint(tmp_path, seed=2, num_shards=3, token="bbbb0000")
    assert verify(again).problems == []
    assert len(list(again.path.glob("*.h5"))) == 3


def _array(**changes: object) -> dict[str, object]:
    segment = [0, 0, 4, "0" * 16]
    base: dict[str, object] = {
        "kind": "dense", "name": "w", "column": "value", "dtype": "float32",
        "shape": [4], "offset": 0, "segments": [segment],
    }  # fmt: skip
    return base | changes


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([_array(shape=[1 << 40], segments=[[0, 0, 1 << 40, "0" * 16]])], "ends at byte"),
        ([_array(), _array(offset=8)], "overlaps"),
        ([_array(segments=[[0, 1, 3, "0" * 16]])], "starts at row 1"),
        ([_array(segments=[])], "its segments have 0"),
        ([_array(shape=[4, 0])], "rows of no bytes"),
        ([_array(dtype="object")], "dtype"),
        ([_array(offset=-1)], "offset"),
        ([_array(segments=[[0, 0, 4, "no checksum"]])], "segments"),
    ],
)
def test_an_impossible_shard_is_refused(arrays: list[dict[str, object]], message: str) -> None:
    fields = {"file": "a.h5", "rank": 0, "host": "n", "num_bytes": 64, "structure": "0" * 16}
    with pytest.raises(UserError, match=message):
        ShardSpec.parse(fields | {"arrays": arrays}, "shard")


@pytest.mark.parametrize("name", ["../a.h5", "/etc/passwd", "..", "a\0b", ""])
def test_shards_stay_inside_the_checkpoint(name: str) -> None:
    fields = {"rank": 0, "host": "n", "num_bytes": 0, "structure": "0" * 16, "arrays": []}
    with pytest.raises(UserError, match="file"):
        ShardSpec.parse(fields | {"file": name}, "shard")


def test_values_survive_json(tmp_path: Path) -> None:
    manifest = make_checkpoint(tmp_path).manifest
    manifest.save(tmp_path / "again.json")
    assert Manifest.load(tmp_path / "again.json") == manifest
    array = manifest.shards[0].arrays[0]
    assert ArraySpec.parse(json.loads(array.to_json()), "again") == array
