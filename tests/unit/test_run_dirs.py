"""Where a run goes when the user does not say."""

from pathlib import Path

from heterps_hpc import events
from heterps_hpc.commands.prepare import default_run_dir
from heterps_hpc.config import Job
from heterps_hpc.events import Launched, TaskBegan
from heterps_hpc.rundir import RunDir

JOB = {
    "name": "a/b $(c)",
    "model": {"name": "ctrdnn"},
    "data": {"train": "x"},
    "train": {"batch_size": 1},
}


def test_runs_get_directories_of_their_own_and_resume_finds_the_last(tmp_path: Path) -> None:
    job = Job.parse(JOB, "job")
    first = default_run_dir(tmp_path / "job.yaml", job)
    assert first == tmp_path / "runs" / "a-b---c-"
    assert default_run_dir(tmp_path / "job.yaml", job, resume=True) == first
    events.record(RunDir(first).create(), TaskBegan(task="measure"))
    assert default_run_dir(tmp_path / "job.yaml", job) == first  # measured only
    events.record(RunDir(first), Launched())
    second = default_run_dir(tmp_path / "job.yaml", job)
    assert second.name == "a-b---c--2"
    assert default_run_dir(tmp_path / "job.yaml", job, resume=True) == first
    events.record(RunDir(second).create(), Launched())
    assert default_run_dir(tmp_path / "job.yaml", job, resume=True) == second
