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
from heterps_hpc.checkpoint.reshard import even_split, reshard
from heterps_hpc.checkpoint.verify import verify
from heterps_hpc.errors import UserError
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
    told = export(make_checkpoint(tmp_path / "run"), tmp_path / "out", tables=form, since=since)
    for table in TABLES:
        path = tmp_path / "out" / told["tables"][table]["file"]
        if form == "parquet":
            read = pq.read_table(path)
            keys = read["keys"].to_numpy()
            vectors = np.array(read["vectors"].to_pylist(), np.float32)
        else:
            with np.load(path, allow_pickle=False) as arrays:
                keys, vectors = arrays["keys"], arrays["vectors"]
        expected = _expected(table, since)
        assert told["tables"][table]["rows"] == len(keys) == len(expected)
        for key, vector in zip(keys, vectors, strict=True):
            assert np.array_equal(vector, expected[int(key)])


def test_exported_weights_are_safetensors(tmp_path: Path) -> None:
    export(make_checkpoint(tmp_path / "run"), tmp_path / "out")
    found = load_file(tmp_path / "out" / "dense.safetensors")
    expected = dense_values(0)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert json.loads((tmp_path / "out" / "export.json").read_text())["step"] == 7


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
