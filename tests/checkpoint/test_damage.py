"""A damaged checkpoint is refused, and the message says which file."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_hpc.checkpoint import Checkpoint, Contents, DamagedCheckpoint, newest
from heterps_hpc.checkpoint.shardwriter import PlannedArray, ShardWriter
from heterps_hpc.checkpoint.store import steps_of
from heterps_hpc.checkpoint.verify import check_shards, verify
from heterps_hpc.errors import UserError
from tests.checkpoint.made import NUM_PARTITIONS, TABLES, change_manifest, make_checkpoint


def read_everything(checkpoint: Checkpoint) -> None:
    """As a world of ranks does when it resumes."""
    with Contents(checkpoint) as contents:
        for table in TABLES:
            for partition in range(NUM_PARTITIONS):
                for _ in contents.rows(table, partition):
                    pass
        for name in contents.names("dense"):
            contents.dense(name)


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << (position % 8)]))


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def test_a_flipped_byte_is_found_wherever_it_is(tmp_path: Path) -> None:
    """Anywhere in a shard, HDF5's own structures and padding included."""
    checkpoint = make_checkpoint(tmp_path, num_rows=12)
    path = checkpoint.path / checkpoint.manifest.shards[1].file
    for position in range(0, path.stat().st_size, 37):
        flip(path, position)
        assert [path.name in problem for problem in verify(checkpoint).problems] == [True]
        flip(path, position)
    assert verify(checkpoint).problems == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_for_a_shard(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """To open a pipe waits for somebody who writes."""
    checkpoint = make_checkpoint(tmp_path)
    path = checkpoint.path / checkpoint.manifest.shards[0].file
    path.unlink()
    make(path)
    assert "is no file" in verify(checkpoint).problems[0]


@pytest.mark.parametrize("num_bytes", [100, 3000])
def test_a_disk_that_is_full_at_once_is_an_error_of_the_disk(
    tmp_path: Path, num_bytes: int
) -> None:
    """HDF5 has several kinds of errors for it; a save is given up for one kind alone."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    array = PlannedArray("dense", "a", "value", np.dtype(np.float32), (10,))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
        with pytest.raises(OSError, match=r"^\[Errno 27\] File too large: '.*\.part'$") as caught:
            ShardWriter(tmp_path / "shard.h5", 0, [array], {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: flip(path, 3)])
def test_damage_is_found_before_ranks_are_started(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    checkpoint = make_checkpoint(tmp_path)
    check_shards(checkpoint)
    path = checkpoint.path / checkpoint.manifest.shards[1].file
    damage(path)
    with pytest.raises(DamagedCheckpoint, match=path.name):
        check_shards(checkpoint)


def test_a_reader_finds_the_damage_too(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path)
    path = checkpoint.path / checkpoint.manifest.shards[0].file
    keys = next(a for a in checkpoint.manifest.shards[0].arrays if a.column == "keys")
    flip(path, keys.offset + 3)
    with pytest.raises(DamagedCheckpoint, match=path.name + r".*do not match their checksum"):
        read_everything(checkpoint)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path)
    gone = checkpoint.path / checkpoint.manifest.shards[1].file
    gone.unlink()
    with pytest.raises(DamagedCheckpoint, match=gone.name + r".*is missing"):
        read_everything(checkpoint)
    assert len(verify(checkpoint).problems) == 1


@pytest.mark.parametrize("change", [-1, -4096, 1])
def test_a_file_of_another_size_is_named(tmp_path: Path, change: int) -> None:
    checkpoint = make_checkpoint(tmp_path)
    path = checkpoint.path / checkpoint.manifest.shards[0].file
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(DamagedCheckpoint, match=path.name + r".*has \d+ bytes, the manifest says"):
        read_everything(checkpoint)


def test_the_manifest_of_another_run_is_refused(tmp_path: Path) -> None:
    mine = make_checkpoint(tmp_path / "mine", seed=1, token="aaaa0000")
    other = make_checkpoint(tmp_path / "other", seed=2, token="bbbb0000")
    shutil.copy(other.path / "manifest.json", mine.path / "manifest.json")
    with pytest.raises(DamagedCheckpoint, match=r"bbbb0000.*belongs to another run"):
        read_everything(Checkpoint.open(mine.path))


def test_shards_of_another_run_are_refused(tmp_path: Path) -> None:
    """Even under the right name and of the right size."""
    mine = make_checkpoint(tmp_path / "mine", seed=1)
    other = make_checkpoint(tmp_path / "other", seed=1, step=8)
    for shard in mine.manifest.shards:
        shutil.copy(other.path / shard.file, mine.path / shard.file)
    with pytest.raises(DamagedCheckpoint, match="of another run"):
        read_everything(mine)


def test_shards_that_changed_places_are_refused(tmp_path: Path) -> None:
    """Of one size, so that only their content can tell."""
    checkpoint = make_checkpoint(tmp_path, num_shards=NUM_PARTITIONS, num_rows=1)
    last, other = (checkpoint.path / shard.file for shard in checkpoint.manifest.shards[-2:])
    assert last.stat().st_size == other.stat().st_size
    swap(last, other)
    assert [problem.split(": ")[0] for problem in verify(checkpoint).problems] == [
        str(last),
        str(other),
    ]
    with pytest.raises(DamagedCheckpoint, match=last.name):
        read_everything(checkpoint)


def _another_step(data: dict[str, Any]) -> None:
    data["step"] += 1


def _other_table_names(data: dict[str, Any]) -> None:
    first, second = data["tables"]
    for shard in data["shards"]:
        for array in shard["arrays"]:
            array["name"] = {first: second, second: first}.get(array["name"], array["name"])


@pytest.mark.parametrize("change", [_another_step, _other_table_names])
def test_a_changed_manifest_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    path = make_checkpoint(tmp_path).path / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match="its checksum is not that of its content"):
        Checkpoint.open(path.parent)


def test_a_torn_folder_is_no_checkpoint(tmp_path: Path) -> None:
    whole = make_checkpoint(tmp_path, 7)
    torn = make_checkpoint(tmp_path, 9)
    (torn.path / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"not a complete checkpoint"):
        Checkpoint.open(torn.path)
    found = newest(tmp_path)
    assert found is not None
    assert found.path == whole.path


def test_a_renamed_checkpoint_is_refused(tmp_path: Path) -> None:
    """A run would resume from it again and again, and sweep out the newer ones."""
    made = make_checkpoint(tmp_path / "checkpoints")
    shutil.copytree(made.path, made.path.with_name("8"))  # not ours
    assert steps_of(made.path.parent) == [7]
    made.path.rename(made.path.with_name("000000099"))
    with pytest.raises(UserError, match=r"is the checkpoint of step 7; rename it to 000000007"):
        newest(made.path.parent)


def test_a_lost_partition_is_reported(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path)
    change_manifest(
        checkpoint.path / "manifest.json", lambda data: data.update(shards=data["shards"][:1])
    )
    problems = verify(Checkpoint.open(checkpoint.path)).problems
    assert len(problems) == len(TABLES)
    assert "3 of its 6 partitions" in problems[0]


@pytest.mark.parametrize("claim", ["keys of one byte", "no vectors", "narrow vectors"])
def test_rows_are_counted_only_where_they_can_be(tmp_path: Path, claim: str) -> None:
    """Memory is made ready for as many rows as are counted, before any of them is read."""
    checkpoint = make_checkpoint(tmp_path)
    with Contents(checkpoint) as contents:
        assert contents.num_rows("user", range(NUM_PARTITIONS)) == 60

    def lie(data: dict[str, Any]) -> None:
        for shard in data["shards"]:
            arrays = {a["column"]: a for a in shard["arrays"] if a["name"] == "user"}
            if claim == "keys of one byte":
                arrays["keys"]["dtype"] = "uint8"
            elif claim == "no vectors":
                shard["arrays"].remove(arrays["vectors"])
            else:
                arrays["vectors"]["shape"][1] = 1

    change_manifest(checkpoint.path / "manifest.json", lie)
    with (
        Contents(Checkpoint.open(checkpoint.path)) as contents,
        pytest.raises(DamagedCheckpoint, match="no vector of 4 numbers for each of its keys"),
    ):
        contents.num_rows("user", range(NUM_PARTITIONS))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged manifest"),
        ("{", "damaged manifest"),
        ("[1]", "not the manifest of a checkpoint"),
        ("{}", "not the manifest of a checkpoint"),
        ("[" * 100_000, "damaged manifest"),
        ('{"format": "heterps-checkpoint", "version": 1}', "job: missing"),
        ('{"format": "heterps-checkpoint", "version": [1]}', "version"),
    ],
)
def test_a_broken_manifest_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = make_checkpoint(tmp_path).path / "manifest.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        Checkpoint.open(path.parent)


def test_a_cut_manifest_is_never_taken_for_whole(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path).path / "manifest.json"
    whole = path.read_bytes()
    for length in random.Random(3).sample(range(len(whole) - 1), 60):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError):
            Checkpoint.open(path.parent)
