"""Slurm from Debian's packages, for the development cluster."""

import os
import shutil
import subprocess

from slurm.dev_cluster.cluster import missing_programs
from slurm.dev_cluster.spec import ClusterError, ClusterSpec

# libpmix-dev has the unversioned libpmix.so that `srun --mpi=pmix` loads, for Open MPI
PACKAGES = ("slurm-wlm", "slurm-client", "slurmd", "slurmctld", "munge", "libpmix-dev")


def install(spec: ClusterSpec, if_possible: bool) -> str:
    """Install what is missing; says what was done. Needs root and apt."""
    missing = missing_programs(spec)
    if not missing:
        return ""
    words = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        problem = f"Slurm is not installed (no {', '.join(missing)}); as root: {words}"
        if if_possible:
            return f"WARNING: {problem}. The tests on the Slurm cluster will be skipped."
        raise ClusterError(problem)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
    quiet = {"env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, **quiet)  # type: ignore[call-overload]
    if done.returncode != 0:  # the package lists may be old, or absent as in most images
        subprocess.run(["apt-get", "update", "-qq"], **quiet)  # type: ignore[call-overload]
        done = subprocess.run(command, **quiet)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise ClusterError(f"`{words}` failed:\n{done.stderr.strip()}")
    return "installed " + " ".join(PACKAGES)
