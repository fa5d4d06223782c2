"""Inside a job that people submitted themselves: is its allocation what the layout needs?"""

import os
import subprocess
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.commands.launch import launch_in_allocation
from heterps_hpc.errors import UserError
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.slurm.allocation import (
    check_allocation,
    is_requeued,
    job_in,
    run_in_allocation,
    shell_of,
)
from heterps_hpc.launch.slurm.options import limit_seconds
from heterps_hpc.launch.slurm.script import own_script, render
from heterps_hpc.layout import Estimate, Layout, Plan
from heterps_hpc.rundir import RunDir
from tests.launch.values import ROOT, cpu_pool, make_cluster, make_job, make_layout

CLUSTER = make_cluster()
LAYOUT = make_layout(CLUSTER, ("cpu", 2), ("gpu", 1))
GOOD = {
    "SLURM_JOB_ID": "7",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_PARTITION_HET_GROUP_0": "cpu",
    "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
    "SLURM_NTASKS_HET_GROUP_0": "2",
    "SLURM_JOB_PARTITION_HET_GROUP_1": "gpu",
    "SLURM_JOB_NUM_NODES_HET_GROUP_1": "1",
}


def test_fitting_allocations_pass() -> None:
    check_allocation(LAYOUT, GOOD)
    check_allocation(LAYOUT, {**GOOD, "SLURM_JOB_NUM_NODES_HET_GROUP_1": "3"})  # more will do
    check_allocation(make_layout(CLUSTER, ("cpu", 2)), {"SLURM_JOB_PARTITION": "cpu"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"SLURM_HET_SIZE": "3"}, "the layout has 2 components, this job 3"),
        ({"SLURM_HET_SIZE": ""}, "the layout has 2 components, this job 1"),
        (
            {"SLURM_JOB_PARTITION_HET_GROUP_1": "mem"},
            r"component 1 of the layout \(pool 'gpu'\) needs partition 'gpu', the job has 'mem'",
        ),
        ({"SLURM_NTASKS_HET_GROUP_0": "1"}, "needs 2 tasks, the job has 1 there"),
        ({"SLURM_JOB_NUM_NODES_HET_GROUP_1": "0"}, "needs 1 nodes, the job has 0 there"),
    ],
)
def test_other_allocations_are_refused_with_the_remedy(
    changes: dict[str, str], reason: str
) -> None:
    with pytest.raises(UserError, match=f"{reason}.*--print-sbatch"):
        check_allocation(LAYOUT, {**GOOD, **changes})


def test_outside_of_a_job_it_is_refused() -> None:
    assert job_in(GOOD) == 7
    with pytest.raises(UserError, match="not inside a Slurm job"):
        job_in({})
    assert not is_requeued({"SLURM_RESTART_COUNT": "0"})
    assert not is_requeued({})
    assert is_requeued({"SLURM_RESTART_COUNT": "1"})


def test_a_script_that_cannot_be_written_is_refused_with_nothing_recorded(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "back\\slash").create()
    request = LaunchRequest(run, LAYOUT, make_job(), CLUSTER)
    with pytest.raises(UserError, match="backslash"):
        run_in_allocation(request, {**os.environ, **GOOD})
    assert not run.history.exists()


def test_what_ranks_would_refuse_is_refused_in_an_allocation_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    run = RunDir(tmp_path / "run").create()
    make_job().save(run.job)
    CLUSTER.save(run.cluster)
    LAYOUT.save(run.layout)
    with pytest.raises(UserError, match="data"):
        launch_in_allocation(run.path, resume=False)
    assert not events.read(run).was_launched


def heads(script: str) -> list[str]:
    return [line for line in script.splitlines() if line.startswith("#SBATCH")]


def test_printed_script_has_the_heads_of_the_generated_one(tmp_path: Path) -> None:
    job = make_job(max_restarts=1)
    script = own_script(LAYOUT, CLUSTER, job, tmp_path)
    assert heads(script) == heads(render(LAYOUT, CLUSTER, job, tmp_path))
    assert script.splitlines()[-1] == f"heterps launch {tmp_path} --in-allocation"
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=20)


def test_a_script_that_loads_modules_is_run_by_a_shell_that_knows_them(tmp_path: Path) -> None:
    for site, shell in ({}, ["/bin/bash"]), ({"modules": ("gcc",)}, ["/bin/bash", "-l"]):
        script = render(LAYOUT, make_cluster(**site), make_job(), tmp_path)
        assert shell_of(script) == shell


@pytest.mark.parametrize("name", ["hetjob.sbatch", "single_pool.sbatch"])
def test_shipped_scripts_are_short_and_valid(name: str) -> None:
    path = ROOT / "slurm" / name
    assert len(path.read_text().splitlines()) <= 12
    subprocess.run(["bash", "-n", path], check=True, timeout=20)


def predicted(hours: float) -> Layout:
    estimate = Estimate(
        samples_per_second=1.0,
        seconds_per_batch=1.0,
        binding_stage=0,
        stages=(),
        hours=hours,
        money_per_hour=1.0,
        money=hours,
    )
    plan = Plan(stages=LAYOUT.stages, estimate=estimate, scheduler="rl")
    return LAYOUT.model_copy(update={"plan": plan})


def test_time_limit_comes_from_the_prediction_unless_the_job_names_one() -> None:
    job = make_job()
    assert limit_seconds(job, CLUSTER, predicted(3.0)) == 2 * 3 * 3600 + 600
    assert limit_seconds(job, CLUSTER, LAYOUT) == 3600
    assert limit_seconds(make_job(time_limit_minutes=5), CLUSTER, predicted(3.0)) == 300
    site = make_cluster(cpu_pool(), time_limit_minutes=30)
    assert limit_seconds(job, site, predicted(3.0)) == 1800
