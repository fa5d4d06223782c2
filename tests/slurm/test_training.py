"""Training on the cluster learns what training by mpirun learns, through every interruption."""

import json
import shutil
from pathlib import Path

import pytest

from heterps_hpc.checkpoint.store import directory_of
from heterps_hpc.cluster import SlurmOptions
from heterps_hpc.events import read_lines
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.failure import explain
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.launch.slurm.job_state import state
from heterps_hpc.rundir import RunDir
from tests.faults.runs import Learned, different_bits, different_numbers
from tests.launch.values import ROOT
from tests.sim_device import environment as sim_environment
from tests.slurm.client import SlurmClient
from tests.slurm.launching import CLUSTER, Launched
from tests.slurm.training import NUM_STEPS, make_job, prepare, result, train_on_slurm

pytestmark = pytest.mark.timeout(300)  # real training on few and busy cores


@pytest.fixture(autouse=True)
def _use_this_cluster(slurm: SlurmClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def local_run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The same layout under one mpirun, without interruption."""
    job = make_job(data)
    run, layout = prepare(tmp_path_factory.mktemp("local"), job)
    launcher = LocalLauncher(environment={"PYTHONPATH": str(ROOT)})
    code = launcher.start(LaunchRequest(run, layout, job, CLUSTER))
    assert code == ExitCode.DONE
    return run


@pytest.fixture(scope="module")
def expected(local_run: RunDir) -> Learned:
    """What it learns."""
    return result(local_run)


def assert_same_bits(job: Launched, expected: Learned) -> None:
    assert different_bits(result(job.run), expected) == []


def test_two_and_two_ranks_learn_the_same_bits(
    slurm: SlurmClient, tmp_path: Path, data: Path, expected: Learned
) -> None:
    job = train_on_slurm(slurm, tmp_path, make_job(data))
    assert job.wait(150) == ExitCode.DONE, job.log()
    assert_same_bits(job, expected)
    assert "preflight" in job.events()


def test_requeue_after_the_signal_continues_bit_for_bit(
    slurm: SlurmClient, tmp_path: Path, data: Path, expected: Learned
) -> None:
    job = train_on_slurm(slurm, tmp_path, make_job(data, max_restarts=1))
    job.wait_for_step(20)  # the first that it reports: all of it takes but a second or two
    slurm.run("scancel", "--signal=USR1", str(job.job_id))
    job.skip_the_delay()
    assert job.wait(150) == ExitCode.DONE, job.log()
    assert job.events().count("start") == 2
    assert_same_bits(job, expected)


def test_worlds_of_one_rank_are_caught(slurm: SlurmClient, tmp_path: Path, data: Path) -> None:
    """srun without PMI starts four worlds of one rank, each of which could train happily."""
    site = CLUSTER.site.model_copy(update={"srun_mpi": "none"})
    wrong = CLUSTER.model_copy(update={"site": site})
    job = train_on_slurm(slurm, tmp_path, make_job(data, max_restarts=1), cluster=wrong)
    assert job.wait() == ExitCode.USER_ERROR, job.log()
    reason = "every rank is alone in a world of its own, the layout has 4"
    assert reason in job.log()
    assert reason in (explain(job.run, ExitCode.USER_ERROR) or "")


def test_accelerators_of_a_partition_learn_the_same(
    slurm: SlurmClient, tmp_path: Path, data: Path, local_run: RunDir, expected: Learned
) -> None:
    """The last steps, with dense ranks on the simulated devices that Slurm grants them."""
    here = CLUSTER.site.environment
    site = CLUSTER.site.model_copy(
        update={"environment": {**here, **sim_environment(granted_only=True)}}
    )
    gpus = CLUSTER.pool("gpu").model_copy(update={"device": "sim", "slurm": SlurmOptions()})
    cluster = CLUSTER.model_copy(update={"pools": (CLUSTER.pool("cpu"), gpus), "site": site})
    begun = directory_of(local_run.checkpoints, NUM_STEPS - 40)
    shutil.copytree(begun, directory_of(RunDir(tmp_path).checkpoints, NUM_STEPS - 40))
    job = train_on_slurm(slurm, tmp_path, make_job(data), cluster=cluster)
    assert job.wait(200) == ExitCode.DONE, job.log()
    assert "--gpus-per-node=2" in job.run.script.read_text()
    summary = json.loads(job.run.summary.read_text())
    ranks = summary["ranks"]
    assert summary["steps"] == 40
    on = [rank["device"] for rank in ranks]
    assert on == ["cpu", "cpu", "sim:0 (simulated)", "sim:1 (simulated)"]
    assert all(rank["device_seconds"]["backward"] > 0 for rank in ranks[2:])
    preflight = next(e for e in read_lines(job.run) if e["event"] == "preflight")
    assert list(preflight["devices"].values()) == ["2 sim devices (2 × simulated)"]
    assert different_numbers(result(job.run), expected, 1e-5) == []


def come_back(job: Launched) -> None:
    """After a node's death: until all of the job waits for another start, or has ended."""

    def settled() -> bool:
        now = state(job.job_id)
        return now is not None and (now.ended or job.queued_again())

    job.slurm.wait_for("the job is requeued or ends itself", settled, 180)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_runs_survive_the_death_of_nodes(
    slurm: SlurmClient, tmp_path: Path, data: Path, expected: Learned
) -> None:
    """Two jobs at once, because Slurm needs half a minute to miss a node.

    The first loses the only node of its leader, so that Slurm may tear it apart; the second
    loses the node of its other component, so that Slurm requeues it whole.
    """
    spec = make_job(data, max_restarts=1)
    first = train_on_slurm(slurm, tmp_path / "first", spec)
    first.wait_for_step(60)
    first.wait_for_watcher()
    dead = [first.node_of(0)]
    slurm.cluster.kill_node(dead[0])
    second = train_on_slurm(slurm, tmp_path / "second", spec, sparse_pool="big")
    second.wait_for_step(60)
    dead.append(second.node_of(1))
    slurm.cluster.kill_node(dead[1])
    for job in (first, second):
        come_back(job)
    for node in dead:
        slurm.cluster.start_node(node)
    for job in (first, second):
        if job.queued_again():
            job.skip_the_delay()
        assert job.wait_with_restarts() == ExitCode.DONE, job.log()
        assert_same_bits(job, expected)
