"""One process scores as the oracle does, from data sets and from raw rows."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from data_prep.table import main as prepare_table
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.serving.predictor import Predictor, sigmoid
from tests.equivalence.cases import Case, make_job
from tests.equivalence.click_log import write_click_logs
from tests.serving.trained import RECIPE, Trained, raw_columns, train

MODELS = ("ctrdnn", "two_embedding", "matchnet", "nce", "sequence", "wide_and_deep", "late")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write_click_logs(folder)
    return folder


def write_csv(path: Path, columns: dict[str, list[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def prepare_raw(folder: Path, *options: str) -> Path:
    """A data set of raw rows by the recipe."""
    write_csv(folder / "rows.csv", raw_columns(300))
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    words = [str(folder / "rows.csv"), "--recipe", str(folder / "recipe.yaml")]
    assert prepare_table([*words, "--out", str(folder / "data"), *options]) in (0, None)
    return folder / "data"


def raw_job(data: Path) -> Job:
    return Job.parse(
        {
            "name": "raw",
            "model": {"name": "ctrdnn", "embedding_dim": 4, "hidden": [8], "init_scale": 0.3},
            "data": {"train": str(data)},
            "train": {"batch_size": 50, "epochs": 2, "seed": 3, "tables": {"num_partitions": 4}},
        },
        "raw",
    )


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("raw")
    return train(raw_job(prepare_raw(folder)), folder / "run")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_scores_equal_the_oracles(logs: Path, tmp_path: Path, model: str, precision: str) -> None:
    trained = train(make_job(Case(model, "1", 1, 0, precision, "plain"), logs), tmp_path / "run")
    test = Dataset.open(logs / "test")
    scores = Predictor.load(trained.run).predict(test, raw=True)
    expected = trained.scores(test)
    tolerance = 1e-12 if precision == "float64" else 2e-6
    np.testing.assert_allclose(scores, expected, rtol=tolerance, atol=tolerance)
    assert np.ptp(scores) > 1e-3


def test_raw_rows_score_as_the_prepared_ones(raw: Trained) -> None:
    expected = trained_probabilities(raw)
    predictor = Predictor.load(raw.run)
    np.testing.assert_allclose(predictor.predict(raw_columns(300)), expected, rtol=1e-5)
    np.testing.assert_allclose(predictor.predict(raw.job.data.train), expected, rtol=1e-5)


def trained_probabilities(raw: Trained) -> np.ndarray:
    scores = raw.scores(Dataset.open(raw.job.data.train))
    return np.asarray(1 / (1 + np.exp(-scores)))


def test_the_label_is_not_needed_and_a_missing_column_is_named(raw: Trained) -> None:
    predictor = Predictor.load(raw.run)
    columns = raw_columns(20)
    with_label = predictor.predict(columns)
    del columns["click"]
    np.testing.assert_array_equal(predictor.predict(columns), with_label)
    del columns["item"]
    with pytest.raises(UserError, match="no column 'item'"):
        predictor.predict(columns)


def test_columns_of_text_are_read_as_those_of_a_file(raw: Trained) -> None:
    predictor = Predictor.load(raw.run)
    columns = raw_columns(20)
    texts = {**columns, "age": ["" if age is None else str(age) for age in columns["age"]]}
    np.testing.assert_array_equal(predictor.predict(texts), predictor.predict(columns))
    with pytest.raises(UserError, match="rows as in the training data are needed"):
        predictor.predict({**columns, "age": ["old"] * 20})
    with pytest.raises(UserError, match="these columns are no table"):
        predictor.predict({**columns, "age": [1.0]})


def test_embeddings_by_raw_ids(raw: Trained) -> None:
    predictor = Predictor.load(raw.run)
    vectors = predictor.embedding("user", ["user 1", "user 2", "nobody"])
    assert vectors.shape == (3, 4)
    assert np.abs(vectors[:2]).min() > 0
    np.testing.assert_array_equal(vectors[2], 0)
    with pytest.raises(UserError, match="slot 'item': values as in the training data"):
        predictor.embedding("item", ["b3"])
    with pytest.raises(UserError, match="reads no slot 'users'"):
        predictor.embedding("users", ["x"])


@pytest.mark.parametrize("options", [("--min-count", "4"), ("--max-keys", "64")])
def test_rare_categories_and_a_cap_on_keys(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Unknown values read as the rare one, or keys are folded, as when the data was made."""
    data = prepare_raw(tmp_path, *options)
    trained = train(raw_job(data), tmp_path / "run")
    predictor = Predictor.load(trained.run)
    np.testing.assert_allclose(
        predictor.predict(raw_columns(300)), trained_probabilities(trained), rtol=1e-5
    )


def test_an_old_checkpoint_takes_its_columns_from_the_data(logs: Path, tmp_path: Path) -> None:
    job = make_job(Case("ctrdnn", "1", 1, 0, "float32", "plain"), logs)
    trained = train(job, tmp_path / "run", with_inputs=False)
    assert len(Predictor.load(trained.run).predict(logs / "test")) > 0
    gone = job.data.model_copy(update={"train": tmp_path / "gone"})
    job.model_copy(update={"data": gone}).save(trained.run / "job.json")
    with pytest.raises(UserError, match="is gone"):
        Predictor.load(trained.run)


def test_it_needs_neither_mpi_nor_horovod(raw: Trained) -> None:
    code = (
        "import sys; import heterps_hpc as hp\n"
        f"hp.load({str(raw.run)!r}).predict({str(raw.job.data.train)!r})\n"
        "assert not {'mpi4py', 'horovod'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.filterwarnings("error")
def test_a_logit_of_any_size_is_a_probability() -> None:
    logits = np.array([-1000, 0, 1000], np.float32)
    assert sigmoid(logits).tolist() == [0, 0.5, 1]
    assert sigmoid(logits).dtype == np.float32
