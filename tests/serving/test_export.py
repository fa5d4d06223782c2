"""An export runs elsewhere: the example, which knows neither torch nor us, scores alike."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from heterps_hpc.errors import UserError
from heterps_hpc.serving.export import Format, export_model
from heterps_hpc.serving.predictor import Predictor
from tests.serving.test_predictor import prepare_raw, raw_job, write_csv
from tests.serving.trained import raw_columns, train

ROOT = Path(__file__).resolve().parents[2]
MODELS = {
    "ctrdnn": {"hidden": [8]},
    "two_embedding": {"hidden": [8], "second_slots": ["tags"], "pooling": "mean"},
    "matchnet": {"item_slot": "item", "num_negatives": 2},
    "nce": {"target_slot": "item", "num_noise": 2},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_raw(tmp_path_factory.mktemp("raw"))


@pytest.mark.parametrize("model", MODELS)
def test_the_example_scores_raw_rows_as_predict_does(
    data: Path, tmp_path: Path, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxruntime", reason="install the extra: pip install .[onnx]")
    caplog.set_level("INFO")
    job = raw_job(data)
    spec = type(job.model)(name=model, embedding_dim=4, init_scale=0.3, **MODELS[model])
    trained = train(job.model_copy(update={"model": spec}), tmp_path / "run")
    predictor = Predictor.load(trained.run)
    manifest = export_model(predictor, tmp_path / "out", "onnx", {"auc": 0.5})
    assert manifest["metrics"] == {"auc": 0.5}
    assert [record.name for record in caplog.records if "onnx" in record.name] == []
    columns = raw_columns(40, seed=9)
    columns["age"] = ["" if age is None else age for age in columns["age"]]
    columns["user"][3] = ""
    write_csv(tmp_path / "rows.csv", columns)
    program = [sys.executable, str(ROOT / "examples/serve_export.py"), str(tmp_path / "out")]
    found = subprocess.run(
        [*program, str(tmp_path / "rows.csv")],
        capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    raw = {**raw_columns(40, seed=9), "user": [word or None for word in columns["user"]]}
    expected = predictor.predict(raw)
    np.testing.assert_allclose(np.array(found.stdout.split(), float), expected, atol=1e-6)


def test_torch_export_runs_without_the_model_file(data: Path, tmp_path: Path) -> None:
    predictor = Predictor.load(train(raw_job(data), tmp_path / "run").run)
    manifest = export_model(predictor, tmp_path / "out", "torch", {})
    program = torch.export.load(tmp_path / "out" / manifest["dense_layers"]["file"]).module()
    rows = predictor.inputs.rows(_arrow())
    tensors = predictor.tensors(rows)
    inputs = [torch.from_numpy(tensors[name]) for name in manifest["dense_layers"]["inputs"]]
    np.testing.assert_allclose(
        program(*inputs).detach().numpy(), predictor.score_rows(rows), rtol=1e-5, atol=1e-6
    )


def _arrow() -> object:
    from heterps_hpc.serving.predictor import as_arrow

    return as_arrow(raw_columns(17, seed=4))


def test_tables_are_mapped_not_loaded(data: Path, tmp_path: Path) -> None:
    predictor = Predictor.load(train(raw_job(data), tmp_path / "run").run)
    export_model(predictor, tmp_path / "out", "torch", {})
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    for spec in manifest["tables"].values():
        keys = np.load(tmp_path / "out" / spec["keys"], mmap_mode="r")
        vectors = np.load(tmp_path / "out" / spec["vectors"], mmap_mode="r")
        assert (np.diff(keys.astype(np.float64)) >= 0).all()
        assert vectors.shape == (spec["rows"], spec["dim"]) == (len(keys), spec["dim"])


def test_an_existing_directory_is_refused(data: Path, tmp_path: Path) -> None:
    predictor = Predictor.load(train(raw_job(data), tmp_path / "run").run)
    chosen: Format = "torch"
    with pytest.raises(UserError, match="exists already"):
        export_model(predictor, tmp_path, chosen, {})


def test_the_command_writes_an_export_and_names_it(data: Path, tmp_path: Path) -> None:
    run = train(raw_job(data), tmp_path / "run").run
    words = ["export", str(run), str(tmp_path / "out"), "--format", "torch"]
    program = [sys.executable, "-m", "heterps_hpc.cli", *words]
    found = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    assert "dense layers in dense.pt2" in found.stdout
    again = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_a_model_that_cannot_be_traced_leaves_nothing_behind(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor.load(train(raw_job(data), tmp_path / "run").run)

    def by_value(*inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0][: int(inputs[0].sum().item())]

    monkeypatch.setattr(predictor.module, "forward", by_value)
    with pytest.raises(UserError, match="cannot be traced"):
        export_model(predictor, tmp_path / "out", "torch", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
