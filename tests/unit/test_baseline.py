"""The baseline AUC of a report: what the best single feature would reach."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from heterps_hpc.commands.baseline import best_feature, record_baseline
from heterps_hpc.config import Job
from heterps_hpc.dataset import Keys, SampleRows, Schema, SlotSpec, offsets_of
from heterps_hpc.dataset.write import DatasetWriter
from heterps_hpc.rundir import RunDir

SCHEMA = Schema(
    slots=(SlotSpec(name="noise"), SlotSpec(name="tells", kind="many")), dense_columns=("flat",)
)


def write(path: Path, seed: int, num_rows: int = 600) -> None:
    """The sign of a click is in the keys of `tells`: even ones are clicked in nine of ten cases."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 8, num_rows).astype(np.uint64)
    counts = rng.integers(1, 3, num_rows)
    clicks = (rng.random(num_rows) < np.where(keys % 2 == 0, 0.9, 0.1)).astype(np.float32)
    rows = SampleRows(
        {
            "noise": Keys(rng.integers(0, 400, num_rows).astype(np.uint64)),
            "tells": Keys(np.repeat(keys, counts), offsets_of(counts)),
        },
        np.ones((num_rows, 1), np.float32),
        clicks[:, None],
    )
    with DatasetWriter(path, SCHEMA) as writer:
        writer.append(rows)


def job(folder: Path) -> Job:
    for seed, part in enumerate(("train", "test")):
        write(folder / part, seed)
    return Job.model_validate(
        {
            "name": "j",
            "model": {"name": "ctrdnn", "embedding_dim": 2, "hidden": [2]},
            "data": {"train": folder / "train", "test": folder / "test"},
            "train": {"batch_size": 8},
            "goal": {"min_fraction_of_best": 0.5},
        }
    )


def test_the_feature_that_tells_is_found(tmp_path: Path) -> None:
    found = best_feature(job(tmp_path))
    assert found is not None
    assert found.feature == "slot tells"
    assert 0.87 < found.auc < 0.93  # nine of ten pairs are in order


def test_it_is_recorded_once_for_a_run_with_an_auc(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    job(tmp_path).save(run.job)
    record_baseline(run)
    assert not run.baseline.exists()
    run.summary.write_text(json.dumps({"evaluation": {"auc": 0.9}}))
    record_baseline(run)
    assert json.loads(run.baseline.read_text())["feature"] == "slot tells"


def test_without_the_data_there_is_none(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    job(tmp_path).save(run.job)
    run.summary.write_text(json.dumps({"evaluation": {"auc": 0.9}}))
    (tmp_path / "train" / "manifest.json").unlink()
    record_baseline(run)
    assert not run.baseline.exists()
