"""Signals, requeues and dead nodes: a run continues or ends, and never hangs."""

from pathlib import Path

import pytest

from heterps_hpc.exit_codes import ExitCode
from tests.launch.values import make_layout
from tests.slurm.client import SlurmClient
from tests.slurm.launching import CLUSTER, launch

ONE_AND_ONE = make_layout(CLUSTER, ("cpu", 1), ("gpu", 1))
WAIT_FIRST = {"default": "wait first"}


@pytest.fixture(autouse=True)
def _use_this_cluster(slurm: SlurmClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])


def test_signal_then_requeue_then_end(slurm: SlurmClient, tmp_path: Path) -> None:
    job = launch(slurm, tmp_path, ONE_AND_ONE, WAIT_FIRST, max_restarts=1)
    job.wait_for_ranks(2)
    slurm.run("scancel", "--signal=USR1", str(job.job_id))
    job.skip_the_delay()
    assert job.wait() == ExitCode.DONE, job.log()
    assert [info["restart"] for info in job.rank_infos(restart=1)] == [1, 1]
    events = [event for event in job.events() if event != "rank_end"]
    assert events == ["submit", "start", "end", "start", "ranks_done", "end"]


def test_restarts_are_counted_to_their_limit(slurm: SlurmClient, tmp_path: Path) -> None:
    job = launch(slurm, tmp_path, ONE_AND_ONE, {"default": 4}, max_restarts=1)
    job.skip_the_delay()
    assert job.wait() == ExitCode.RANK_FAILED, job.log()
    assert job.events().count("start") == 2


@pytest.mark.full
def test_ranks_that_outlive_srun_requeue_the_job(slurm: SlurmClient, tmp_path: Path) -> None:
    """srun dies with its node; Slurm has not noticed yet when the other component's ranks fail."""
    job = launch(slurm, tmp_path, ONE_AND_ONE, {"default": "fail on order"}, max_restarts=1)
    job.wait_for_ranks(2)
    job.wait_for_watcher()
    slurm.cluster.kill_node(job.node_of(0))
    (tmp_path / "fail").touch()
    slurm.wait_for("the watcher requeues the job", lambda: "leaderless" in job.events(), 30)
    job.skip_the_delay()
    assert job.wait() == ExitCode.DONE, job.log()
    assert job.events().count("start") == 2
    assert "torn" not in job.events()
