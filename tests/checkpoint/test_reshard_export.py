"""The same content in other shards, and in the formats that serving reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from heterps_hpc.checkpoint import Checkpoint, Contents
from heterps_hpc.checkpoint.command import app
from heterps_hpc.checkpoint.export import export
from heterps_hpc.checkpoint.exported import keys_of, open_weights
from heterps_hpc.checkpoint.reshard import even_split, reshard
from heterps_hpc.checkpoint.verify import verify
from heterps_hpc.errors import UserError
from heterps_hpc.rundir import steps_of
from tests.checkpoint.made import (
    NUM_PARTITIONS,
    TABLES,
    change_manifest,
    dense_values,
    make_checkpoint,
    table_rows,
)
from tests.faults.runs import different_bits, learned


@pytest.mark.parametrize("num_shards", [1, 3, 6])
def test_resharding_changes_nothing_but_the_files(tmp_path: Path, num_shards: int) -> None:
    before = make_checkpoint(tmp_path / "run", num_shards=4)
    after = reshard(before, tmp_path / "out", even_split(before, num_shards))
    assert len(after.manifest.shards) == num_shards
    assert verify(after).problems == []
    assert different_bits(learned(before), learned(after)) == []


def test_resharding_refuses_what_cannot_be(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "run")
    with pytest.raises(UserError, match="give 1 to 6"):
        even_split(checkpoint, 7)
    with pytest.raises(UserError, match="there is a checkpoint already"):
        reshard(checkpoint, checkpoint.path, even_split(checkpoint, 1))


def _expected(table: str, since: int | None) -> dict[int, np.ndarray]:
    found = {}
    for partition in range(NUM_PARTITIONS):
        rows = table_rows(table, partition, 60, seed=0)
        for key, vector, step in zip(rows["keys"], rows["vectors"], rows["step"], strict=True):
            if since is None or step >= since:
                found[int(key)] = vector
    return found


@pytest.mark.parametrize("since", [None, 5])
@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_exported_tables_have_the_rows(tmp_path: Path, form: str, since: int | None) -> None:
    summary = export(make_checkpoint(tmp_path / "run"), tmp_path / "out", tables=form, since=since)
    for table in TABLES:
        path = tmp_path / "out" / summary.tables[table].file
        if form == "parquet":
            read = pq.read_table(path)
            keys = read["keys"].to_numpy()
            vectors = np.array(read["vectors"].to_pylist(), np.float32)
        else:
            with np.load(path, allow_pickle=False) as arrays:
                keys, vectors = arrays["keys"], arrays["vectors"]
        expected = _expected(table, since)
        assert summary.tables[table].rows == len(keys) == len(expected)
        for key, vector in zip(keys, vectors, strict=True):
            assert np.array_equal(vector, expected[int(key)])


def test_exported_weights_are_safetensors(tmp_path: Path) -> None:
    export(make_checkpoint(tmp_path / "run"), tmp_path / "out")
    found = load_file(tmp_path / "out" / "dense.safetensors")
    expected = dense_values(0)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert json.loads((tmp_path / "out" / "export.json").read_text())["step"] == 7


@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_an_export_reads_like_the_checkpoint_it_was_made_of(tmp_path: Path, form: str) -> None:
    checkpoint = make_checkpoint(tmp_path / "run")
    export(checkpoint, tmp_path / "out", tables=form, state=True)
    with Contents(checkpoint) as contents, open_weights(tmp_path / "out") as again:
        assert again.checkpoint.manifest.tables == checkpoint.manifest.tables
        assert again.checkpoint.manifest.key_recipe == checkpoint.manifest.key_recipe
        for table, row_format in checkpoint.manifest.tables.items():
            parts = range(checkpoint.manifest.num_partitions)
            before = [rows for part in parts for rows in contents.rows(table, part)]
            after = list(again.rows(table, 0, 50))
            columns = ["keys", "vectors", *(["state"] if row_format.state_dim else [])]
            for column in columns:
                np.testing.assert_array_equal(
                    np.concatenate([rows[column] for rows in before]),
                    np.concatenate([rows[column] for rows in after]),
                )
        for name in contents.names("dense"):
            assert again.dense_shape(name) == contents.dense_shape(name)
            np.testing.assert_array_equal(again.dense(name)["value"], contents.dense(name)["value"])
        assert again.dense_shape("none") is None
    (tmp_path / "out" / "dense.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"dense\.safetensors"):
        open_weights(tmp_path / "out")


@pytest.mark.parametrize("base", ["export", "checkpoint"])
def test_rows_that_are_gone_are_listed(tmp_path: Path, base: str) -> None:
    before = make_checkpoint(tmp_path / "before", num_rows=90)
    now = make_checkpoint(tmp_path / "now", num_rows=60)
    old = before.path if base == "checkpoint" else tmp_path / "old"
    if base == "export":
        export(before, old)
    spec = export(now, tmp_path / "out", since=5, base=old)
    for table, found in spec.tables.items():
        assert found.removed_file is not None
        gone = np.load(tmp_path / "out" / found.removed_file)
        expected = np.setdiff1d(keys_of(before.path, table), keys_of(now.path, table))
        assert found.removed == len(gone) == len(expected) > 0
        np.testing.assert_array_equal(gone, expected)
    with pytest.raises(UserError, match="only rows that changed since step 5"):
        open_weights(tmp_path / "out")


def test_changes_need_steps(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "run")

    def without_steps(data: dict[str, Any]) -> None:
        for shard in data["shards"]:  # as if the tables had not tracked steps
            shard["arrays"] = [array for array in shard["arrays"] if array["column"] != "step"]

    change_manifest(checkpoint.path / "manifest.json", without_steps)
    with pytest.raises(UserError, match=r"train\.tables\.track_changes: true"):
        export(Checkpoint.open(checkpoint.path), tmp_path / "out", since=3)


def test_the_command_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_checkpoint(run / "checkpoints", 5)
    make_checkpoint(run / "checkpoints", 7)
    runner = CliRunner()
    as_json = json.loads(runner.invoke(app, ["ls", str(run), "--json"]).stdout)
    assert [each["step"] for each in as_json] == steps_of(run / "checkpoints")
    listed = runner.invoke(app, ["ls", str(run)])
    assert listed.exit_code == 0, listed.output
    assert [line.split()[0] for line in listed.output.splitlines()[1:]] == ["5", "7"]
    good = runner.invoke(app, ["verify", str(run), "--step", "5"])
    assert "all good" in good.output
    made = runner.invoke(app, ["reshard", str(run), str(tmp_path / "two"), "--shards", "2"])
    assert made.exit_code == 0, made.output
    with Contents(Checkpoint.open(tmp_path / "two")) as contents:
        assert len(contents.checkpoint.manifest.shards) == 2
    out = runner.invoke(app, ["export", str(run), str(tmp_path / "out"), "--since", "2"])
    assert "dense.safetensors" in out.output
    bad = runner.invoke(app, ["verify", str(tmp_path / "nowhere")])
    assert isinstance(bad.exception, UserError)
