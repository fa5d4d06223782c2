"""Scores go back to rows: an id column, files in, files out."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import yaml

from data_prep.table import main as prepare_table
from heterps_hpc import events
from heterps_hpc.commands import predict as command
from heterps_hpc.commands.predict import predict, predict_here
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import StartFailed, UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, Listener
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.rundir import RunDir
from heterps_hpc.serving.predictor import Predictor
from heterps_hpc.serving.score_file import ScoreFile
from tests.launch.values import make_cluster, make_layout
from tests.serving.test_predictor import raw_job, write_csv
from tests.serving.trained import RECIPE, Trained, raw_columns, train

NUM_ROWS = 300
IDS = [f"request, {number}" for number in range(NUM_ROWS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scores")
    write_csv(folder / "rows.csv", {**raw_columns(NUM_ROWS), "request": IDS})
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "id": "request"}))
    words = [str(folder / "rows.csv"), "--recipe", str(folder / "recipe.yaml"), "--no-progress"]
    split = ["--split", "hash", "--test-fraction", "0.3", "--segment-mb", "0.005"]
    assert prepare_table([*words, *split, "--out", str(folder / "data")]) == 0
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Trained:
    return train(raw_job(folder / "data" / "train"), folder / "run")


def table(path: Path) -> dict[str, list[object]]:
    """A file of scores, whatever its format."""
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            text = {"id"}
            return {n: (file[n].asstr() if n in text else file[n])[:].tolist() for n in file}
    found = pacsv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
    return {name: found[name].to_pylist() for name in found.column_names}


def test_ids_of_a_data_set_belong_to_its_rows(folder: Path) -> None:
    """The split scatters the rows; every one keeps its id."""
    columns = raw_columns(NUM_ROWS)
    seen: list[str] = []
    for part in ("train", "test"):
        dataset = Dataset.open(folder / "data" / part)
        ids = dataset.ids()
        assert ids is not None
        middle = dataset.ids(5, 20)
        assert middle is not None
        assert list(middle) == list(ids[5:20])
        seen += list(ids)
        rows = [IDS.index(one) for one in ids]
        given = {name: [values[row] for row in rows] for name, values in columns.items()}
        expected = np.log1p(np.array(given["price"], np.float32))
        from heterps_hpc.dataset import ColumnSelection, Order, Reader

        order = Order(dataset, dataset.manifest.num_rows, shuffle=False)
        with Reader(dataset, order, ColumnSelection(dense=True)) as reader:
            dense = next(reader).dense
        assert dense is not None
        np.testing.assert_allclose(dense[:, 0], expected, rtol=1e-6)
    assert sorted(seen) == sorted(IDS)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".h5"])
@pytest.mark.parametrize("source", ["csv", "parquet", "data set"])
def test_scores_by_id(
    folder: Path, trained: Trained, tmp_path: Path, source: str, suffix: str
) -> None:
    """From a file or a data set, into a file of any format: every row has its own score."""
    data = folder / "rows.csv" if source == "csv" else folder / "data" / "test"
    if source == "parquet":
        data = tmp_path / "rows.parquet"
        columns = {**raw_columns(NUM_ROWS), "request": IDS}
        del columns["click"]  # rows to score need no label
        pq.write_table(pa.table(columns), data)
    out = tmp_path / f"scores{suffix}"
    predict_here(trained.run, data, out, None, ",")
    assert sorted(path.name for path in tmp_path.iterdir() if path != data) == [out.name]
    found = table(out)
    expected = dict(zip(IDS, Predictor.load(trained.run).predict(raw_columns(300)), strict=True))
    assert len(found["id"]) == (NUM_ROWS if source != "data set" else len(set(found["id"])))
    assert found["sample_id"] == list(range(len(found["id"])))
    np.testing.assert_allclose(
        np.array(found["probability"], float),
        [expected[str(one)] for one in found["id"]],
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    ("line", "out", "said"),
    [
        ("1,user 1,7,t1,1.5,30,r1\n0,user 2,x,t1,1.5,30,r2\n", "s.csv", "line 3: column 3"),
        ("", "s.csv", "no rows to score"),
        ("1,user 1,7,t1,1.5,30,r1\n", "s.txt", "suffix names the format"),
        ("1,user 1,7,t1,1.5,30,r1\n", "rows.csv", "exists already"),
    ],
)
def test_what_cannot_be_scored_is_refused_and_leaves_nothing(
    trained: Trained, tmp_path: Path, line: str, out: str, said: str
) -> None:
    (tmp_path / "rows.csv").write_text("click,user,item,tags,price,age,request\n" + line)
    with pytest.raises(UserError, match=said):
        predict_here(trained.run, tmp_path / "rows.csv", tmp_path / out, None, ",")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_a_data_set_is_scored_here_where_there_is_no_mpi(
    trained: Trained, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    monkeypatch.setattr(command, "launcher_for", lambda on: pytest.fail(f"starts ranks on {on}"))
    out = tmp_path / "s.csv"
    assert predict(trained.run, folder / "data" / "test", out, None, None) == ExitCode.DONE
    assert table(out)["score"]


class FailedRanks(LocalLauncher):
    """Ranks that start and fail."""

    def start(self, request: LaunchRequest, listener: Listener = Listener()) -> ExitCode:  # noqa: B008
        events.record(request.run, events.Started())
        events.record(request.run, events.RankEnded(rank=0, code=4, reason="no memory"))
        return ExitCode.RANK_FAILED


def test_ranks_that_fail_to_score_say_why_and_leave_no_scores(
    trained: Trained, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, cluster = RunDir(trained.run), make_cluster()
    cluster.save(run.cluster)
    make_layout(cluster, ("cpu", 1)).save(run.layout)
    monkeypatch.setattr(command, "launcher_for", lambda on: FailedRanks())
    with pytest.raises(StartFailed, match=r"scoring failed: rank 0 .*: no memory") as failure:
        predict(trained.run, folder / "data" / "test", tmp_path / "s.h5", None, "local")
    assert failure.value.code == ExitCode.RANK_FAILED
    assert list(tmp_path.iterdir()) == []


def test_scores_that_cannot_be_finished_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ScoreFile) -> None:
        raise OSError(28, "No space left on device")

    scores = ScoreFile.create(tmp_path / "scores.csv")
    monkeypatch.setattr(type(scores), "_finish", fail)
    with pytest.raises(OSError, match="No space left"), scores:
        scores.append({"score": np.zeros(3)})
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_scored_on_slurm(trained: Trained, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="in this process, not on Slurm"):
        predict(trained.run, folder / "rows.csv", tmp_path / "s.csv", None, "slurm")


def test_without_a_recipe_raw_files_are_refused(trained: Trained, folder: Path) -> None:
    predictor = Predictor.load(trained.run)
    from dataclasses import replace

    predictor.inputs = replace(predictor.inputs, recipe=None)
    with pytest.raises(UserError, match="heterps prepare"):
        predictor.predict(folder / "rows.csv")
