"""How often a heterogeneous Slurm job of each MPI starts as one world and ends well."""

import shlex
import subprocess
import time
from pathlib import Path

from benchmarks.record import Record
from heterps_hpc.launch.mpi import mpi_environment
from slurm.dev_cluster.cluster import DevCluster
from slurm.dev_cluster.spec import ClusterSpec, can_isolate

RANK = Path(__file__).with_name("mpi_choice_rank.py")
PLUGIN = {"mpich": "pmi2", "openmpi": "pmix"}
LIMIT_SECONDS = 100  # far more than a healthy job takes on a busy machine
SCRIPT = """#!/bin/bash
#SBATCH --job-name=mpi-choice --output={log} --time=2
#SBATCH --partition=cpu --nodes=2 --ntasks=2
#SBATCH hetjob
#SBATCH --partition=gpu --nodes=1 --ntasks=2 --gres=gpu:1
{exports}
srun --mpi={plugin} --kill-on-bad-exit=1 --het-group=0 {command} : --het-group=1 {command}
"""


def reliability(venvs: dict[str, Path], num_jobs: int, folder: Path) -> list[Record]:
    """Share of jobs that passed, and the median time of one, per MPI."""
    cluster = DevCluster(ClusterSpec(folder, isolate=can_isolate()))
    cluster.up()
    try:
        records = []
        for flavour, venv in venvs.items():
            took = [_one_job(cluster, flavour, venv, folder / "job") for _ in range(num_jobs)]
            passed = sorted(seconds for seconds in took if seconds is not None)
            name = f"{flavour}, jobs of 2 + 2 ranks on 3 Slurm nodes"
            records.append(Record(f"{name}: passed of {num_jobs}", len(passed), "jobs"))
            if passed:
                median = passed[len(passed) // 2]
                records.append(Record(f"{name}: median time", round(median, 1), "s"))
        return records
    finally:
        cluster.down()


def _one_job(cluster: DevCluster, flavour: str, venv: Path, stem: Path) -> float | None:
    """Seconds of one job, None if it failed or hung; a world of four ranks must have formed."""
    log, script = stem.with_suffix(".log"), stem.with_suffix(".sh")
    log.unlink(missing_ok=True)
    settings = {**mpi_environment(flavour, "slurm"), "OMP_NUM_THREADS": "1"}  # type: ignore[arg-type]
    exports = "\n".join(f"export {name}={shlex.quote(v)}" for name, v in settings.items())
    command = f"{venv}/bin/python -m mpi4py {RANK} 0 1"
    script.write_text(
        SCRIPT.format(log=log, exports=exports, plugin=PLUGIN[flavour], command=command)
    )
    began = time.monotonic()
    job = _slurm(cluster, "sbatch", "--parsable", str(script)).split(";")[0]
    try:
        while time.monotonic() - began < LIMIT_SECONDS:
            states = _slurm(cluster, "squeue", "-h", "--states=all", "-o", "%T", "-j", job).split()
            if states and not {"PENDING", "RUNNING", "COMPLETING"} & set(states):
                whole = log.exists() and '"ranks": 4' in log.read_text()
                good = whole and set(states) == {"COMPLETED"}
                return time.monotonic() - began if good else None
            time.sleep(0.2)
        return None
    finally:
        _slurm(cluster, "scancel", job)


def _slurm(cluster: DevCluster, *command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, env=cluster.spec.environment(), timeout=60
    ).stdout
