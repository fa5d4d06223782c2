"""A dataset whose manifest and shards disagree is refused, and the message names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from heterps_hpc.dataset import ColumnSelection, Dataset, Order, Reader
from heterps_hpc.errors import UserError
from tests.data.samples import write_mixed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_mixed(tmp_path / "d", 500, rows_per_shard=200, block_rows=16)
    return tmp_path / "d"


def change_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such dataset"):
        Dataset.open(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"rows\.csv: no such file; a dataset is a directory"):
        Dataset.open(tmp_path / "rows.csv")
    for part in ("test", "train"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "manifest.json").touch()
    with pytest.raises(UserError, match=r"a folder of some; give \S+/test or \S+/train$"):
        Dataset.open(tmp_path)


def test_missing_shard(path: Path) -> None:
    (path / "shard-00001.h5").unlink()
    with pytest.raises(UserError, match=r"shard-00001\.h5: missing"):
        Dataset.open(path)


def test_cut_off_shard(path: Path) -> None:
    shard = path / "shard-00002.h5"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"shard-00002\.h5: \d+ bytes, but the manifest says"):
        Dataset.open(path)


def test_a_flipped_bit_is_found_by_checksums(path: Path) -> None:
    shard = path / "shard-00001.h5"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    Dataset.open(path, verify="sizes")
    with pytest.raises(UserError, match=r"shard-00001\.h5: its checksum is"):
        Dataset.open(path, verify="checksums")


def test_shards_that_changed_places_are_found(path: Path) -> None:
    first, second = path / "shard-00000.h5", path / "shard-00001.h5"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(UserError, match=r"shard-00000\.h5: .* but the manifest says"):
        Dataset.open(path, verify="checksums")


def test_changed_key_samples_are_found(path: Path) -> None:
    (path / "key_samples.h5").write_bytes(b"x")
    with pytest.raises(UserError, match=r"key_samples\.h5"):
        Dataset.open(path)


def test_row_counts_must_add_up(path: Path) -> None:
    change_manifest(path, lambda manifest: manifest.update(num_rows=499))
    with pytest.raises(UserError, match="num_rows is 499, but the shards hold 500"):
        Dataset.open(path)


def test_another_version(path: Path) -> None:
    change_manifest(path, lambda manifest: manifest.update(version=2))
    with pytest.raises(UserError, match="version"):
        Dataset.open(path)


def test_a_manifest_that_is_not_json(path: Path) -> None:
    (path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json: not valid JSON"):
        Dataset.open(path)


def test_a_shard_of_another_length(path: Path) -> None:
    # same size on disk, other rows than the manifest says: found when the shard is opened
    def swap(manifest: dict[str, Any]) -> None:
        manifest["shards"][0]["num_rows"], manifest["shards"][2]["num_rows"] = 100, 200

    change_manifest(path, swap)
    dataset = Dataset.open(path)
    with (
        Reader(dataset, Order(dataset, 50), ColumnSelection(("one",))) as reader,
        pytest.raises(UserError, match=r"num_rows is \d+, but the manifest says"),
    ):
        list(reader)


def test_a_shard_without_the_column(path: Path, tmp_path: Path) -> None:
    change_manifest(path, lambda manifest: manifest["slots"][0].update(name="other"))
    dataset = Dataset.open(path)
    with (
        Reader(dataset, Order(dataset, 50), ColumnSelection(("other",))) as reader,
        pytest.raises(UserError, match=r"column 'slots/other/keys' is None"),
    ):
        next(reader)


def test_a_shard_that_is_not_hdf5(path: Path) -> None:
    shard = path / "shard-00000.h5"
    shard.write_bytes(b"\0" * shard.stat().st_size)
    dataset = Dataset.open(path)
    with (
        Reader(dataset, Order(dataset, 500), ColumnSelection(("one",))) as reader,
        pytest.raises(UserError, match=r"shard-00000\.h5: the shard is damaged"),
    ):
        next(reader)


def test_unknown_columns(path: Path) -> None:
    dataset = Dataset.open(path)
    with pytest.raises(UserError, match="no slot 'mny'; did you mean 'many'"):
        Reader(dataset, Order(dataset, 50), ColumnSelection(("mny",)))
    with pytest.raises(UserError, match="no slot"):
        dataset.key_sample("nothing")


def test_a_copy_elsewhere_is_the_same_dataset(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "copy")
    left, right = Dataset.open(path), Dataset.open(tmp_path / "copy", verify="checksums")
    assert left.manifest.fingerprint() == right.manifest.fingerprint()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest: manifest["shards"][0].update(file="../x.h5"), "without a path"),
        (lambda manifest: manifest["shards"][0].update(num_rows=2**60), "rows in"),
        (lambda manifest: manifest.update(block_rows=2**40), "block_rows"),
        (lambda manifest: manifest["slots"][0].update(name="a/b"), "without '/'"),
        (
            lambda manifest: manifest["slots"].append(manifest["slots"][0]),
            "names appear twice: one",
        ),
        (lambda manifest: manifest.update(extra=1), "extra: unknown key"),
    ],
)
def test_impossible_manifests(
    path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    change_manifest(path, change)
    with pytest.raises(UserError, match=message):
        Dataset.open(path)


@pytest.mark.parametrize("column", ["lengths", "starts"])
def test_ragged_columns_that_disagree(path: Path, column: str) -> None:
    shard = path / "shard-00000.h5"
    with h5py.File(shard, "r+") as file:
        file[f"slots/many/{column}"][3] += 1
    change_manifest(
        path, lambda manifest: manifest["shards"][0].update(num_bytes=shard.stat().st_size)
    )
    dataset = Dataset.open(path)
    with (
        Reader(dataset, Order(dataset, 500), ColumnSelection(("many",))) as reader,
        pytest.raises(UserError, match=r"shard-00000\.h5: block .* the shard is damaged"),
    ):
        next(reader)
