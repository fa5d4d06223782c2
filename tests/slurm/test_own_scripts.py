"""The scripts that people copy: submitted by sbatch, they train as generated ones do."""

import subprocess
import sys
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.dataset import Dataset
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.status import RunPhase, read_status
from heterps_hpc.layout import Layout, Stage
from heterps_hpc.models import build_model
from heterps_hpc.rundir import RunDir
from heterps_hpc.sharding import bind_plan
from tests.launch.values import ROOT
from tests.slurm.client import SlurmClient
from tests.slurm.launching import CLUSTER
from tests.slurm.training import NUM_STEPS, make_job

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("here")]


@pytest.fixture(autouse=True)
def _own_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "heterps"
    command.write_text(f'#!/bin/bash\nexec {sys.executable} -m heterps_hpc.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("HETERPS", str(command))


def planned(path: Path, data: Path, *pools: tuple[str, int], **launch: int) -> RunDir:
    """A run directory as `heterps plan` leaves it: tables on the first pool."""
    job = make_job(data, **launch)
    model = build_model(job.model, Dataset.open(job.data.train).manifest)
    names = [layer.name for layer in model.layers]
    cuts = [names] if len(pools) == 1 else [names[:1], names[1:]]
    stages = tuple(
        Stage(pool=pool, layers=tuple(layers), num_ranks=count)
        for (pool, count), layers in zip(pools, cuts, strict=True)
    )
    layout = bind_plan(
        stages,
        model=model,
        cluster=CLUSTER,
        job=job.name,
        num_partitions=job.train.tables.num_partitions,
    )
    run = RunDir(path).create()
    job.save(run.job)
    CLUSTER.save(run.cluster)
    layout.save(run.layout)
    return run


def submit(slurm: SlurmClient, script: str, run: RunDir) -> int:
    words = ["sbatch", "--parsable", "--export=ALL", f"--output={run.logs}/slurm-%j.log"]
    done = subprocess.run(
        [*words, str(ROOT / "slurm" / script), str(run.path)],
        cwd=run.path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    job = int(done.stdout.split(";")[0])
    slurm.jobs.append(job)
    return job


def log(run: RunDir) -> str:
    return "".join(file.read_text() for file in run.launcher_logs())


def test_two_partitions_with_a_requeue(slurm: SlurmClient, tmp_path: Path) -> None:
    """The signal before the time limit, a requeue by the command itself, and the end."""
    run = planned(tmp_path / "run", tmp_path / "data", ("cpu", 2), ("gpu", 1), max_restarts=1)
    job = submit(slurm, "hetjob.sbatch", run)
    saved = lambda: bool(run.saved_steps())  # noqa: E731
    slurm.wait_for("a checkpoint", saved, 120)
    assert read_status(run.path).state.phase == RunPhase.RUNNING
    slurm.run("scancel", "--signal=USR1", str(job))

    def waits() -> bool:
        return slurm.states(job) == ["PENDING", "PENDING"]

    slurm.wait_for("all components queued again", waits, 60)
    slurm.start_soon(job)
    assert slurm.wait_until_ended(job, 150) == ["COMPLETED", "COMPLETED"], log(run)
    history = events.read(run)
    assert history.num_starts == 2
    assert [(end.code, end.again) for end in history.of(events.Ended)] == [(3, True), (0, False)]
    assert run.saved_steps()[-1] == NUM_STEPS
    assert read_status(run.path).state.code == ExitCode.DONE


def test_one_partition_and_an_allocation_that_does_not_fit(
    slurm: SlurmClient, tmp_path: Path
) -> None:
    run = planned(tmp_path / "run", tmp_path / "data", ("cpu", 2))
    wrong = planned(tmp_path / "wrong", tmp_path / "data", ("gpu", 2))
    jobs = [submit(slurm, "single_pool.sbatch", each) for each in (run, wrong)]
    assert slurm.wait_until_ended(jobs[0], 150) == ["COMPLETED"], log(run)
    assert run.saved_steps()[-1] == NUM_STEPS
    assert slurm.wait_until_ended(jobs[1], 60) == ["FAILED"]
    assert "needs partition 'gpu', the job has 'cpu' there" in log(wrong)
    assert Layout.load(wrong.layout).num_ranks == 2
    assert not wrong.history.exists()
