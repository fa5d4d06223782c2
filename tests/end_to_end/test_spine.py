"""The spine: a tiny job through every step and every file of a run, by the command line."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
import yaml

import heterps_hpc as hp
from heterps_hpc.layout import Layout
from heterps_hpc.planning_result import PlanningResult
from heterps_hpc.profile import Profile
from heterps_hpc.profiling.measurement import Measured
from heterps_hpc.report.inputs import read_run
from heterps_hpc.report.spending import spending
from heterps_hpc.rundir import RunDir

pytestmark = pytest.mark.timeout(300)  # a busy machine measures and trains slowly
JOB = {
    "name": "spine",
    "model": {"name": "ctrdnn", "embedding_dim": 8, "hidden": [32, 16]},
    "data": {
        "train": "data/train",
        "test": "data/test",
        "synthetic": {"train_rows": 4000, "test_rows": 1000, "num_slots": 6, "cardinality": 200},
    },
    "train": {"batch_size": 256, "micro_batches": 2, "metrics_every": 5},
    "goal": {"min_fraction_of_best": 0.3},
    "cluster": "cluster.yaml",
    "plan": {"scheduler": "rl", "seconds": 2, "trial_runs": 2, "trial_seconds": 0.5},
    "measure": {"batches": 4, "warmup": 2, "rank_counts": [1]},
    "launch": {"oversubscribe": True, "time_limit_minutes": 2},
}
POOL = {"price_per_hour": 1.0, "max_ranks": 1, "cores_per_node": 2}
CLUSTER = {"pools": [POOL | {"name": "cpu"}, POOL | {"name": "gpu", "price_per_hour": 2.0}]}


def heterps(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "heterps_hpc.cli", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spine")
    (path / "job.yaml").write_text(yaml.safe_dump(JOB))
    (path / "cluster.yaml").write_text(yaml.safe_dump(CLUSTER))
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> RunDir:
    done = heterps(folder, "run", "job.yaml", "--run-dir", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    return RunDir(folder / "run")


def test_every_step_leaves_its_file(run: RunDir) -> None:
    Profile.load(run.profile)
    layout = Layout.load(run.layout)
    assert layout.plan is not None
    assert layout.plan.gap is not None
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"train", "evaluation"}
    assert lines[-1]["samples"] == 1000
    summary = json.loads(run.summary.read_text())
    assert summary["samples"] == 4000
    assert len(summary["ranks"]) == layout.num_ranks
    assert run.report.read_text().lstrip().lower().startswith("<!doctype html")
    assert json.loads(run.trace.read_text())["traceEvents"]


def test_plans_were_tried_before_one_was_taken(run: RunDir) -> None:
    result = PlanningResult.load(run.schedulers)
    assert [trial.taken for trial in result.trials].count(True) == 1
    assert len(result.trials) == len(list(run.path.glob("trials/*/summary.json"))) == 2
    for trial in result.trials:
        assert trial.samples_per_second is not None
        assert trial.spent > 0
    assert "Tried before the job" in run.report.read_text()
    spent = spending(read_run(run))
    assert spent is not None
    assert spent.money > spent.besides["trials"] > 0


def test_layers_do_not_take_longer_than_the_step(run: RunDir) -> None:
    """Nothing may be counted twice, however micro-batches alternate."""
    files = list(run.path.glob("measure/*/measured.json"))
    assert files
    for file in files:
        found = Measured.load(file)
        assert sum(found.layer_seconds.values()) <= 1.1 * found.step_seconds
        assert found.window_rows > 0
        assert 0 < found.window_seconds < 5


def test_a_finished_directory_is_not_overwritten(folder: Path, run: RunDir) -> None:
    again = heterps(folder, "launch", "run")
    assert again.returncode == 2
    assert "--resume" in again.stderr


def test_scores_of_the_checkpoint_come_in_sample_order(folder: Path, run: RunDir) -> None:
    done = heterps(folder, "predict", "run", "--data", "data/test", "--out", "scores.h5")
    assert done.returncode == 0, done.stderr
    assert not (folder / "run" / "predict" / "scores.h5").exists()
    with h5py.File(folder / "scores.h5") as file:
        assert list(file["sample_id"][:]) == list(range(1000))
        assert ((file["probability"][:] > 0) & (file["probability"][:] < 1)).all()


def test_the_same_from_python(
    folder: Path, run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mapping instead of a file; its paths count from the working directory."""
    monkeypatch.chdir(folder)
    train = {**JOB["train"], "steps": 4, "evaluate_at_end": False}
    job = {**JOB, "name": "notebook", "train": train, "plan": {"scheduler": "greedy"}}
    planned = hp.plan(job, profile=run.profile)
    done = hp.run(job, profile=run.profile)
    assert done.path == folder / "runs" / "notebook"
    assert done.layout.plan is not None
    assert done.layout.plan.stages == planned.plan.stages == done.planning.plan.stages
    assert done.summary["steps"] == 4
    assert {record["kind"] for record in done.metrics} == {"train"}
    assert len(done.load().predict("data/test")) == 1000
    assert "<iframe srcdoc=" in hp.report(done)._repr_html_()
    with pytest.raises(hp.UserError, match="min_fraction_of_bes"):
        hp.plan({**job, "goal": {"min_fraction_of_bes": 1}})


def test_a_dry_run_prints_the_command(folder: Path, run: RunDir) -> None:
    shown = heterps(folder, "launch", "run", "--dry-run")
    assert "heterps_hpc.runtime" in shown.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "none.yaml"), "no such file"),
        (("plan", "job.yaml", "--scheduler", "magic", "--run-dir", "run"), "magic"),
        (("run", "job.yaml", "--on", "moon"), "valid: local, slurm"),
        (("launch", "data"), "not a run directory"),
        (("predict", "run", "--data", "nowhere", "--out", "other.h5"), "nowhere"),
        (
            ("predict", "run", "--data", "data/test", "--out", "x.txt"),
            "names the format",
        ),
        (("prepare", "criteoo"), "no source"),
    ],
)
def test_mistakes_end_with_code_2_and_one_line(
    folder: Path, run: RunDir, words: tuple[str, ...], said: str
) -> None:
    done = heterps(folder, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
