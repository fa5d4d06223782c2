"""Signals, requeues and dead nodes: a run goes on or ends, and never hangs."""

from pathlib import Path

import pytest

from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch import slurm as launcher
from tests.launch.values import make_layout
from tests.slurm.client import SlurmClient
from tests.slurm.launching import CLUSTER, Launched, launch

ONE_AND_ONE = make_layout(CLUSTER, ("cpu", 1), ("gpu", 1))
WAIT_FIRST = {"default": "wait first"}


@pytest.fixture(autouse=True)
def _use_this_cluster(slurm: SlurmClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])


def node_of(job: Launched, component: int) -> str:
    state = launcher.state(job.job_id)
    assert state is not None
    return state.components[component].nodes


def test_signal_then_requeue_then_end(slurm: SlurmClient, tmp_path: Path) -> None:
    job = launch(slurm, tmp_path, ONE_AND_ONE, WAIT_FIRST, max_restarts=1)
    job.wait_for_ranks(2)
    slurm.run("scancel", "--signal=USR1", str(job.job_id))
    job.skip_the_delay()
    assert job.wait() == ExitCode.DONE, job.log()
    assert [fact["restart"] for fact in job.facts(restart=1)] == [1, 1]
    events = [event for event in job.events() if event != "rank_end"]
    assert events == ["submit", "start", "end", "start", "end"]


def test_restarts_are_counted_to_their_limit(slurm: SlurmClient, tmp_path: Path) -> None:
    job = launch(slurm, tmp_path, ONE_AND_ONE, {"default": 4}, max_restarts=1)
    job.skip_the_delay()
    assert job.wait() == ExitCode.RANK_FAILED, job.log()
    assert job.events().count("start") == 2


@pytest.mark.slow
def test_node_deaths(slurm: SlurmClient, tmp_path: Path) -> None:
    """Two jobs at once, because Slurm needs half a minute to miss a node.

    The first loses the only node of its leader, so that Slurm tears it apart; the second loses
    the node of its other component, so that Slurm requeues it whole.
    """
    layout = make_layout(CLUSTER, ("cpu", 1), ("gpu", 2))  # all GPUs of a node: jobs share none
    torn = launch(slurm, tmp_path / "torn", layout, WAIT_FIRST, max_restarts=1)
    torn.wait_for_ranks(3)
    leaders_node = node_of(torn, 0)
    layout = make_layout(CLUSTER, ("big", 1), ("gpu", 2))
    whole = launch(slurm, tmp_path / "whole", layout, WAIT_FIRST, max_restarts=1)
    whole.wait_for_ranks(3)
    others_node = node_of(whole, 1)
    slurm.cluster.kill_node(leaders_node)
    slurm.cluster.kill_node(others_node)

    slurm.wait_for("the torn job ends itself", lambda: "torn" in torn.events(), 60)
    slurm.wait_until_ended(torn.job_id)
    whole.skip_the_delay()
    for node in (leaders_node, others_node):
        slurm.cluster.start_node(node)
    assert whole.wait() == ExitCode.DONE, whole.log()
    assert "resubmit" not in whole.events()

    (torn.run.path / "behave.json").write_text('{"default": 0}')
    assert torn.wait() == ExitCode.DONE, torn.log()
    assert torn.events().count("resubmit") == 1
