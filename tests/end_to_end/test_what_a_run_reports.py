"""What a run leaves behind about itself: metrics, traffic by link, and scores in sample order."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from heterps_hpc.dataset import (
    ColumnSelection,
    Dataset,
    Keys,
    Order,
    Reader,
    SampleRows,
    Schema,
    SlotSpec,
)
from heterps_hpc.dataset.write import DatasetWriter
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.runtime.metrics.quality import auc, log_loss
from tests.equivalence.cases import BATCH_SIZE, CLUSTER, Case
from tests.equivalence.click_log import NUM_ROWS, write_click_logs
from tests.faults.runs import Run, make_run, metrics

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 12  # two epochs of five whole batches and a short one
# the dense stage's two replicas cut every micro-batch, so scores come back in pieces
CASE = Case("ctrdnn", "1+2", 4, 1, "float32", "evaluate")
WIDTH = 6 * 4  # slots times embedding_dim


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("click_logs")
    write_click_logs(path)
    return path


def trained(path: Path, data: Path, case: Case) -> Run:
    run = make_run(path, data, case, steps=STEPS, launch={"oversubscribe": True})
    CLUSTER.save(run.directory.cluster)
    run.start().check()
    return run


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("run"), data, CASE)


def sent(run: Run) -> list[dict[str, Any]]:
    """What each rank sent, by channel and peer."""
    ranks: list[dict[str, Any]] = json.loads(run.directory.summary.read_text())["ranks"]
    return ranks


def test_metrics_report_speed_and_quality(run: Run) -> None:
    lines = [line for line in metrics(run) if line["kind"] == "train"]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    named = {"loss", "samples_per_second", "auc", "log_loss", "normalised_entropy"}
    assert all(named <= line.keys() for line in lines)
    # on the samples that were just trained on, log loss is the loss itself
    assert [line["log_loss"] for line in lines] == pytest.approx(
        [line["loss"] for line in lines], rel=1e-5
    )
    tested = [line["step"] for line in metrics(run) if line["kind"] == "evaluation"]
    assert tested == [3, 6, 9, 12]


def test_every_link_has_one_message_per_micro_batch(run: Run) -> None:
    """Both epochs' batches of 40 rows and of 11 give each replica rows of every micro-batch."""
    sparse, *replicas = sent(run)
    assert sparse["messages_sent"] == {"ROWS": {"1": 4 * STEPS, "2": 4 * STEPS}}
    for replica in replicas:
        assert replica["messages_sent"] == {"ROW_GRADIENTS": {"0": 4 * STEPS}}


def test_bytes_are_those_of_the_rows_on_either_wire(data: Path, run: Run, tmp_path: Path) -> None:
    short = trained(tmp_path, data, replace(CASE, wire="bfloat16"))
    for each, num_bytes in ((run, 4), (short, 2)):
        sparse, *replicas = sent(each)
        expected = 2 * NUM_ROWS * WIDTH * num_bytes  # two epochs
        assert sum(sparse["bytes_sent"]["ROWS"].values()) == expected
        assert sum(r["bytes_sent"]["ROW_GRADIENTS"]["0"] for r in replicas) == expected


def predict(run: Run, data: Path, out: Path) -> subprocess.CompletedProcess[str]:
    words = ["predict", str(run.directory.path), "--data", str(data), "--out", str(out)]
    command = [sys.executable, "-m", "heterps_hpc.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_predicted_scores_are_the_evaluated_ones_in_sample_order(
    data: Path, run: Run, tmp_path: Path
) -> None:
    """And neither the training data nor Horovod is needed for it."""
    out = tmp_path / "scores.h5"
    hidden = run.job.data.train.rename(tmp_path / "hidden")
    try:
        done = predict(run, data / "test", out)
    finally:
        hidden.rename(run.job.data.train)
    assert done.returncode == 0, done.stderr
    assert "horovod" not in loaded_by("heterps_hpc.runtime.predict")
    with h5py.File(out) as file:
        ids, scores, labels = (file[name][:] for name in ("sample_id", "score", "label"))
    assert ids.tolist() == list(range(NUM_ROWS))
    assert labels.tolist() == stored_labels(data / "test").tolist()
    reported = json.loads(run.directory.summary.read_text())["evaluation"]
    assert log_loss(scores, labels) == pytest.approx(reported["log_loss"], rel=1e-6)
    assert auc(scores, labels) == pytest.approx(reported["auc"], rel=1e-9)


def loaded_by(module: str) -> set[str]:
    """Packages that importing a module loads."""
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def stored_labels(path: Path) -> np.ndarray:
    """The labels of a data set as they are stored."""
    dataset = Dataset.open(path)
    order = Order(dataset, BATCH_SIZE, shuffle=False)
    with Reader(dataset, order, ColumnSelection(slots=(), labels=True), num_epochs=1) as reader:
        blocks = [batch.labels for batch in reader]
    return np.concatenate([block[:, 0] for block in blocks if block is not None])


def test_scoring_data_without_a_slot_of_the_model_is_refused(run: Run, tmp_path: Path) -> None:
    schema = Schema(slots=(SlotSpec(name="user"),), dense_columns=("d0",), labels=("click",))
    with DatasetWriter(tmp_path / "poor", schema, rows_per_shard=100) as writer:
        one = np.ones((50, 1), np.float32)
        writer.append(SampleRows({"user": Keys(np.arange(50, dtype=np.uint64))}, one, one, None))
    done = predict(run, tmp_path / "poor", tmp_path / "scores.h5")
    assert done.returncode == ExitCode.USER_ERROR
    assert "no slot" in done.stderr
    assert "Traceback" not in done.stderr
