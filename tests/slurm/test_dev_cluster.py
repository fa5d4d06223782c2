"""The development cluster itself: one MPI world over two components, death and return."""

import os
import re
import subprocess
import sys
from pathlib import Path

from slurm.dev_cluster.cluster import DevCluster
from slurm.dev_cluster.processes import pid_of
from slurm.dev_cluster.spec import NODES, ClusterSpec, can_isolate
from tests.slurm.client import SlurmClient
from tests.slurm.conftest import free_ports

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """#!/bin/bash
#SBATCH --job-name=world --output={log} --time=5
#SBATCH --partition=cpu --nodes=2 --ntasks=2
#SBATCH hetjob
#SBATCH --partition=gpu --nodes=1 --ntasks=2 --gres=gpu:1
srun --mpi=pmi2 --kill-on-bad-exit=1 \\
     --het-group=0 {python} -m mpi4py {world} 0 : \\
     --het-group=1 {python} -m mpi4py {world} 1
"""


def write_world_job(tmp_path: Path) -> tuple[Path, Path]:
    script, log = tmp_path / "job.sh", tmp_path / "job.log"
    world = Path(__file__).with_name("world.py")
    script.write_text(SCRIPT.format(log=log, python=sys.executable, world=world))
    return script, log


def test_one_world_spans_both_components(slurm: SlurmClient, tmp_path: Path) -> None:
    script, log = write_world_job(tmp_path)
    job = slurm.submit(script)
    states = slurm.wait_until_ended(job)
    text = log.read_text()
    assert states == ["COMPLETED", "COMPLETED"], text
    line = r"rank=(\d) of=4 component=(\d) node=(\w+) host=\w+ sum=(\d) all=6"
    found = sorted(re.findall(line, text))  # each rank prints when it likes
    assert found == [
        ("0", "0", "c1", "1"),
        ("1", "0", "c2", "1"),
        ("2", "1", found[2][2], "5"),
        ("3", "1", found[2][2], "5"),
    ], text


def test_killed_node_is_noticed_and_comes_back(slurm: SlurmClient, tmp_path: Path) -> None:
    script = tmp_path / "sleep.sh"
    script.write_text("#!/bin/bash\n#SBATCH -p mem -o /dev/null --no-requeue\nsrun sleep 300\n")
    job = slurm.submit(script)
    slurm.wait_for("running", lambda: slurm.states(job) == ["RUNNING"])
    slurm.cluster.kill_node("m1")
    assert slurm.wait_until_ended(job, seconds=60) == ["NODE_FAIL"]
    slurm.cluster.start_node("m1")
    job = slurm.submit(script)
    slurm.wait_for("running again", lambda: slurm.states(job) == ["RUNNING"])


def test_impossible_component_is_refused_at_once(slurm: SlurmClient, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH -p gpu -N 1 --gres=gpu:9\ntrue\n")
    refused = slurm.run("sbatch", script, check=False)
    assert refused.returncode != 0
    assert "not available" in refused.stderr


def test_cluster_ends_with_the_process_that_started_it(
    slurm_cluster: DevCluster, tmp_path: Path
) -> None:
    """A killed test run must not leave daemons behind."""
    spec = ClusterSpec(
        Path(f"/tmp/hs-guard-{os.getpid()}"), free_ports(1 + len(NODES)), isolate=can_isolate()
    )
    owner = subprocess.Popen(["sleep", "60"])
    words = ["--dir", spec.folder, "--port", spec.port, "up", "--with-pid", owner.pid]
    try:
        subprocess.run(
            [sys.executable, "-m", "slurm.dev_cluster", *map(str, words)],
            cwd=ROOT,
            check=True,
            timeout=60,
        )
        daemons = [pid for f in spec.folder.glob("run/*.pid") if (pid := pid_of(f))]
        assert len(daemons) == 3 + len(NODES)  # the guard is one
        owner.kill()
        owner.wait()
        client = SlurmClient(slurm_cluster)
        client.wait_for("daemons gone", lambda: not any(spec.folder.glob("run/*.pid")), 20)
    finally:
        owner.kill()
        DevCluster(spec).down()
        subprocess.run(["rm", "-rf", spec.folder], check=True)
