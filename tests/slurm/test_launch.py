"""One layout as one job on a real cluster: the right world, honest ends, clear refusals."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from heterps_hpc.cluster import SlurmOptions
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.slurm.job_state import state
from heterps_hpc.launch.slurm.launcher import SlurmLauncher
from heterps_hpc.rundir import RunDir
from tests.launch.values import cpu_pool, gpu_pool, make_cluster, make_layout
from tests.slurm.client import SlurmClient
from tests.slurm.launching import CLUSTER, SITE, launch

TWO_AND_TWO = make_layout(CLUSTER, ("cpu", 2), ("gpu", 2))


@pytest.fixture(autouse=True)
def _use_this_cluster(slurm: SlurmClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])


def test_ranks_are_where_the_layout_says(slurm: SlurmClient, tmp_path: Path) -> None:
    layout = make_layout(CLUSTER, ("cpu", 5), ("gpu", 3))
    job = launch(slurm, tmp_path, layout, {"default": 0})
    assert job.wait() == ExitCode.DONE, job.log()
    rank_infos = job.rank_infos()
    assert [info["rank"] for info in rank_infos] == list(range(8))
    assert {info["size"] for info in rank_infos} == {8}
    assert [info["component"] for info in rank_infos] == [0] * 5 + [1] * 3
    assert {info["node"][0] for info in rank_infos[:5]} == {"c"}
    assert {info["node"][0] for info in rank_infos[5:]} == {"g"}
    on_node = [info["node"] for info in rank_infos]
    assert max(on_node.count(node) for node in ("c1", "c2")) <= 4
    assert max(on_node.count(node) for node in ("g1", "g2")) <= 2
    assert job.events() == ["submit", "start", "ranks_done", "end"]


def test_three_components_are_one_world(slurm: SlurmClient, tmp_path: Path) -> None:
    layout = make_layout(CLUSTER, ("cpu", 1), ("gpu", 1), ("big", 1))
    job = launch(slurm, tmp_path, layout, {"default": 0})
    assert job.wait() == ExitCode.DONE, job.log()
    seen = [(info["size"], info["component"], info["node"][0]) for info in job.rank_infos()]
    assert seen == [(3, 0, "c"), (3, 1, "g"), (3, 2, "m")]


def test_nodes_whose_names_are_out_of_order(slurm: SlurmClient, tmp_path: Path) -> None:
    """m1 comes before g1 in the layout, after it by name; without care MPICH hangs here."""
    layout = make_layout(CLUSTER, ("big", 1), ("gpu", 2))
    job = launch(slurm, tmp_path, layout, {"default": 0})
    assert job.wait() == ExitCode.DONE, job.log()
    assert [info["node"][0] for info in job.rank_infos()] == ["m", "g", "g"]


def test_pool_used_by_two_stages_is_one_plain_job(slurm: SlurmClient, tmp_path: Path) -> None:
    layout = make_layout(CLUSTER, ("cpu", 1), ("cpu", 1))
    job = launch(slurm, tmp_path, layout, {"default": 0})
    assert job.wait() == ExitCode.DONE, job.log()
    assert [info["size"] for info in job.rank_infos()] == [2, 2]


def test_one_failed_rank_ends_the_job(slurm: SlurmClient, tmp_path: Path) -> None:
    job = launch(slurm, tmp_path, TWO_AND_TWO, {"3": "die", "default": "wait"})
    assert job.wait() == ExitCode.RANK_FAILED
    now = state(job.job_id)
    assert now is not None
    assert [component.state for component in now.components] == ["FAILED", "FAILED"]
    assert {component.exit_code for component in now.components} == {ExitCode.RANK_FAILED}


def test_users_error_is_not_tried_again(slurm: SlurmClient, tmp_path: Path) -> None:
    job = launch(slurm, tmp_path, TWO_AND_TWO, {"default": 2}, max_restarts=3)
    assert job.wait() == ExitCode.USER_ERROR, job.log()
    assert job.events().count("start") == 1


def test_variables_of_the_user_do_not_reach_the_job(
    slurm: SlurmClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "mem")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    job = launch(slurm, tmp_path, TWO_AND_TWO, {"default": 0})
    assert job.wait() == ExitCode.DONE, job.log()
    assert [info["node"][0] for info in job.rank_infos()] == ["c", "c", "g", "g"]


HOSTILE = "a b;$(touch BROKE) `touch BROKE` 'q' \"d\" #SBATCH %j %t hetjob & : \\"


def test_hostile_names_stay_names(slurm: SlurmClient, tmp_path: Path) -> None:
    where = tmp_path / HOSTILE.replace("\\", "")
    job = launch(slurm, where, TWO_AND_TWO, {"default": 0}, name=HOSTILE)
    assert job.wait() == ExitCode.DONE, job.log()
    assert len(job.rank_infos()) == 4
    assert list(tmp_path.rglob("BROKE*")) == []
    assert (where / f"logs/slurm-{job.job_id}.log").exists()


def test_cancel_ends_every_component(slurm: SlurmClient, tmp_path: Path) -> None:
    job = launch(slurm, tmp_path, TWO_AND_TWO, {"default": "wait"}, max_restarts=3)
    job.wait_for_ranks(4)
    _expect_starts(job.request)
    with pytest.raises(UserError, match=f"job {job.job_id} of this run is still there"):
        launch(slurm, tmp_path, TWO_AND_TWO, {"default": "wait"})
    SlurmLauncher().cancel(RunDir(tmp_path), save=False)
    assert job.wait() == ExitCode.STOPPED
    assert slurm.states(job.job_id) == ["CANCELLED", "CANCELLED"]
    with pytest.raises(UserError, match="has ended already"):
        SlurmLauncher().cancel(RunDir(tmp_path), save=False)


def _expect_starts(running: LaunchRequest) -> None:
    """One more rank could start at once; all of them after the running job's five minutes."""
    soon, late = (
        SlurmLauncher().expected_start(replace(running, layout=layout))
        for layout in (
            make_layout(CLUSTER, ("cpu", 1), ("gpu", 1)),
            make_layout(CLUSTER, ("cpu", 8), ("gpu", 4)),
        )
    )
    now = datetime.now().astimezone()
    assert soon is not None
    assert late is not None
    assert abs(soon - now) < timedelta(minutes=2)
    assert timedelta(minutes=2) < late - now < timedelta(minutes=8)


def test_cancel_after_saving_is_not_undone_by_a_requeue(slurm: SlurmClient, tmp_path: Path) -> None:
    job = launch(slurm, tmp_path, TWO_AND_TWO, {"default": "wait"}, max_restarts=3)
    job.wait_for_ranks(4)
    SlurmLauncher().cancel(RunDir(tmp_path), save=True)
    assert job.wait() == ExitCode.STOPPED
    assert job.events().count("start") == 1


def test_impossible_component_is_refused_before_queueing(
    slurm: SlurmClient, tmp_path: Path
) -> None:
    cluster = make_cluster(cpu_pool(), gpu_pool(max_nodes=9), **SITE)
    layout = make_layout(cluster, ("cpu", 1), ("gpu", 10))
    with pytest.raises(UserError) as refusal:
        launch(slurm, tmp_path, layout, {"default": 0}, cluster=cluster)
    text = str(refusal.value)
    assert "component 1 (10 ranks on 5 nodes of partition 'gpu')" in text
    assert "component 0" not in text
    assert "More processors requested than permitted" in text  # Slurm's own words
    assert slurm.jobs == []


def test_unknown_partition_is_refused_as_slurm_words_it(slurm: SlurmClient, tmp_path: Path) -> None:
    cluster = make_cluster(cpu_pool(partition="cpux"), gpu_pool(), **SITE)
    layout = make_layout(cluster, ("cpu", 1), ("gpu", 1))
    with pytest.raises(UserError, match=r"component 0 .*'cpux'.*invalid partition"):
        launch(slurm, tmp_path, layout, {"default": 0}, cluster=cluster)


@pytest.mark.parametrize("option", ["--array=0-1", "--dependency=singleton"])
def test_array_and_singleton_are_refused(slurm: SlurmClient, tmp_path: Path, option: str) -> None:
    pool = cpu_pool(slurm=SlurmOptions(options=(option,)))
    cluster = make_cluster(pool, gpu_pool(), **SITE)
    layout = make_layout(cluster, ("cpu", 1), ("gpu", 1))
    with pytest.raises(UserError, match="is refused"):
        launch(slurm, tmp_path, layout, {"default": 0}, cluster=cluster)
    assert slurm.jobs == []
