"""The batch script of a layout, to the letter; HETERPS_UPDATE_GOLDEN=1 writes the files again."""

import os
import subprocess
from pathlib import Path

import pytest

from heterps_hpc.cluster import Cluster, SlurmOptions
from heterps_hpc.config import Job
from heterps_hpc.launch.mpi import Flavour
from heterps_hpc.launch.slurm.script import render
from heterps_hpc.layout import Layout
from tests.launch.values import cpu_pool, gpu_pool, make_cluster, make_job, make_layout

GOLDEN = Path(__file__).parent / "golden"


def two_pools() -> tuple[Layout, Cluster, Job, Flavour]:
    cluster = make_cluster()
    return make_layout(cluster, ("cpu", 2), ("gpu", 2)), cluster, make_job(), "mpich"


def one_pool() -> tuple[Layout, Cluster, Job, Flavour]:
    cluster = make_cluster(cpu_pool())
    return make_layout(cluster, ("cpu", 6)), cluster, make_job(time_limit_minutes=1.5), "mpich"


def pool_used_twice() -> tuple[Layout, Cluster, Job, Flavour]:
    cluster = make_cluster()
    layout = make_layout(cluster, ("cpu", 1), ("gpu", 2), ("cpu", 2))
    return layout, cluster, make_job(max_restarts=3, bind="core"), "mpich"


def full_site() -> tuple[Layout, Cluster, Job, Flavour]:
    gpu = gpu_pool(
        device="cuda",
        cores_per_node=64,
        cores_per_rank=16,
        gpus_per_node=4,
        memory_per_node_gb=512,
        slurm=SlurmOptions(
            account="proj 7", qos="long", constraint="a100&nvlink", options=("--exclusive",)
        ),
    )
    cluster = make_cluster(
        cpu_pool(slurm=SlurmOptions(account="proj 7")),
        gpu,
        modules=("gcc/13", "openmpi/5"),
        setup=("source /opt/site/init.sh",),
        environment={"NCCL_SOCKET_IFNAME": "ib0", "GREETING": "it's $HOME"},
        prefix=("apptainer", "exec", "--nv", "/images/heterps 1.sif"),
        python="/opt/venv/bin/python",
        srun_options=("--network=deviceX",),
        time_limit_minutes=2 * 24 * 60,
    )
    layout = make_layout(cluster, ("cpu", 5), ("gpu", 6))
    return layout, cluster, make_job("week-long", time_limit_minutes=7 * 24 * 60), "openmpi"


CASES = {case.__name__: case for case in (two_pools, one_pool, pool_used_twice, full_site)}


@pytest.mark.parametrize("name", CASES)
def test_script_is_the_golden_file(name: str) -> None:
    layout, cluster, job, flavour = CASES[name]()
    script = render(layout, cluster, job, "/runs/a b", flavour=flavour, python="/venv/bin/python")
    golden = GOLDEN / f"{name}.sbatch"
    if os.environ.get("HETERPS_UPDATE_GOLDEN"):
        golden.write_text(script)
    assert script == golden.read_text()


@pytest.mark.parametrize("name", CASES)
def test_golden_file_is_valid_bash(name: str) -> None:
    subprocess.run(["bash", "-n", GOLDEN / f"{name}.sbatch"], check=True, timeout=20)


def test_plain_job_names_no_group() -> None:
    layout, cluster, job, _ = one_pool()
    script = render(layout, cluster, job, "/runs/x")
    assert "--het-group" not in script
    assert "#SBATCH hetjob" not in script


def test_rendering_is_pure() -> None:
    layout, cluster, job, _ = two_pools()
    assert render(layout, cluster, job, "/r") == render(layout, cluster, job, "/r")


def test_a_job_that_was_requeued_is_not_ended_for_want_of_space() -> None:
    """The watcher's own functions; its notes find a full disk."""
    layout, cluster, job, flavour = two_pools()
    script = render(layout, cluster, job, "/runs/r", flavour=flavour)
    functions = script.split("watch_leader='\n")[1].split("\nwhile sleep")[0]
    program = f"scontrol() {{ :; }}\nscancel() {{ echo ended; }}\n{functions}\nrequeue || end"
    command = ["bash", "-c", program, "watch_leader", "1", "/dev/full"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.stdout == ""
