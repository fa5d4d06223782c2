"""`heterps plan --set`: any key changed, the difference shown, nothing written; `--json`; and plans
for a deadline that count the queue."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from heterps_hpc.cli import app
from heterps_hpc.commands.plan import plan
from heterps_hpc.errors import UserError
from heterps_hpc.job_inputs import load_inputs
from heterps_hpc.plan.difference import changes
from heterps_hpc.planning_result import PlanningResult
from heterps_hpc.rundir import RunDir
from tests.data.samples import write_mixed
from tests.plan.test_make import small_cluster, small_job

CLUSTER = small_cluster().model_dump(mode="json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job on pools described by data sheets, with its profile."""
    from heterps_hpc.commands.measure import measure
    from heterps_hpc.launch.local import LocalLauncher

    folder = tmp_path_factory.mktemp("what_if")
    write_mixed(folder / "data", 200)
    sheets = {"cpu": "cpu_core", "gpu": "v100"}
    pools = [pool | {"data_sheet": sheets[pool["name"]]} for pool in CLUSTER["pools"]]
    (folder / "cluster.yaml").write_text(yaml.safe_dump({"pools": pools}))
    job = small_job(min_samples_per_second=1000.0).model_dump(mode="json")
    job |= {"data": {"train": "data"}, "train": {"batch_size": 64, "epochs": 100_000}}
    job["plan"] = {"scheduler": "exact", "seconds": 1.0}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    spec, cluster = load_inputs(folder / "job.yaml")
    profile = measure(spec, cluster, RunDir(folder / "measured").create(), LocalLauncher())
    profile.save(folder / "profile.json")
    return folder


def heterps(folder: Path, *words: str) -> Any:
    arguments = ["plan", str(folder / "job.yaml"), "--profile", str(folder / "profile.json")]
    return CliRunner().invoke(app, [*arguments, *words], catch_exceptions=False)


def test_any_key_can_be_set_and_is_checked_as_in_a_file(folder: Path) -> None:
    job, cluster = load_inputs(
        folder / "job.yaml",
        ["pools.gpu.max_nodes=8", "goal.max_hours=2", "train.sparse.lr=0.5", "links=[]",
         "data.test=other", "goal.min_samples_per_second=null"],
    )  # fmt: skip
    assert cluster.pool("gpu").max_nodes == 8
    assert (job.goal.max_hours, job.goal.min_samples_per_second) == (2.0, None)
    assert job.train.sparse.lr == 0.5
    assert job.data.test == folder / "other"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("pools.gpu.maxnodes=8", ["unknown key", "did you mean 'max_nodes'"]),
        ("pools.gpus.max_nodes=8", ["no entry 'gpus'", "did you mean 'gpu'"]),
        ("gaol.max_hours=8", ["no key 'gaol.max_hours'", "did you mean 'goal.max_hours'"]),
        ("goal.max_hours", ["no value", "KEY=VALUE"]),
        ("goal.max_hours=-1", ["goal.max_hours", "greater than 0"]),
        ("name.first=1", ["name is a value and has no keys"]),
        ("pools.gpu=1", ["pools is a list"]),
        ("goal.max_hours=[", ["not valid YAML"]),
    ],
)
def test_mistakes_in_settings_are_named(folder: Path, setting: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_inputs(folder / "job.yaml", [setting])
    for word in words:
        assert word in str(caught.value)


def test_the_difference_is_shown_and_nothing_is_written(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    twice = ("--set", "pools.cpu.price_per_hour=0.02", "--set", "train.epochs=200000")
    done = heterps(folder, *twice)
    assert done.exit_code == 0
    assert "what if pools.cpu.price_per_hour=0.02 train.epochs=200000" in done.stdout
    assert "as it is" in done.stdout
    assert "money +0.0 %, samples/s +0.0 %, time 2.0 ×." in done.stdout
    answer = json.loads(heterps(folder, *twice, "--json").stdout)
    assert answer["set"] == [twice[1], twice[3]]
    old, new = (PlanningResult.model_validate(answer[key]) for key in ("before", "after"))
    assert new.plan.estimate.hours == pytest.approx(2 * old.plan.estimate.hours)
    assert changes(old, old) == "The plan does not change."
    assert changes(None, new) == "There is a plan with it, and none as it is."
    assert sorted(folder.rglob("*")) == before


def test_the_profile_of_the_same_job_next_door_is_used(folder: Path, tmp_path: Path) -> None:
    def plan_of(job: str, *words: str) -> Any:
        return CliRunner().invoke(app, ["plan", job, "--run-dir", str(tmp_path / "new"), *words])

    file = str(folder / "job.yaml")
    assert plan_of(file).exit_code != 0
    spec, cluster = load_inputs(folder / "job.yaml")
    trained = RunDir(tmp_path / "trained").create()
    shutil.copy(folder / "profile.json", trained.profile)
    cluster.save(trained.cluster)
    other = spec.train.model_copy(update={"batch_size": 32})
    spec.model_copy(update={"train": other}).save(trained.job)
    assert plan_of(file).exit_code != 0  # of another batch size
    spec.model_copy(update={"train": spec.train.model_copy(update={"epochs": 2})}).save(trained.job)
    assert plan_of(file).exit_code == 0
    assert plan_of(file, "--set", "train.epochs=3").exit_code == 0


def test_json_is_the_whole_result_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    done = heterps(folder, "--json", "--run-dir", str(tmp_path / "run"))
    assert done.exit_code == 0
    result = PlanningResult.model_validate(json.loads(done.stdout))
    assert result.plan.gap == 0.0
    assert result == PlanningResult.load(RunDir(tmp_path / "run").schedulers)


class _Queue:
    """A launcher whose jobs start the later the more ranks they have."""

    def __init__(self, per_rank: timedelta) -> None:
        self.per_rank = per_rank
        self.asked: list[int] = []

    def expected_start(self, request: Any) -> datetime:
        self.asked.append(request.layout.num_ranks)
        return datetime.now().astimezone() + request.layout.num_ranks * self.per_rank


def test_a_deadline_counts_the_queue(folder: Path, tmp_path: Path) -> None:
    """One rank trains the job in a second or so; the queue takes 40 s, or two minutes."""
    soon = datetime.now().astimezone() + timedelta(minutes=1)
    settings = ["goal.min_samples_per_second=null", "goal.startup_minutes=0", "train.epochs=10"]
    job, cluster = load_inputs(folder / "job.yaml", [*settings, f"goal.deadline='{soon}'"])
    run = RunDir(tmp_path / "run").create()
    queue = _Queue(timedelta(seconds=40))
    layout = plan(job, cluster, run, folder / "profile.json", on=queue)  # type: ignore[arg-type]
    assert layout.num_ranks == 1
    assert queue.asked == [1]
    full = _Queue(timedelta(minutes=2))
    with pytest.raises(UserError, match=r"goal.deadline is .*training can begin at"):
        plan(job, cluster, run, folder / "profile.json", on=full)  # type: ignore[arg-type]
