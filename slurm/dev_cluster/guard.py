"""A cluster that ends with whoever started it, even if that one is killed."""

import os
import select
import subprocess
import sys
from pathlib import Path

from slurm.dev_cluster.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]


def start_guard(cluster: Cluster, pid: int) -> None:
    """Leave behind a process that takes the cluster down once `pid` has ended."""
    words = ["--dir", cluster.spec.folder, "guard", "--pid", str(pid)]
    subprocess.Popen(
        [sys.executable, "-m", "slurm.dev_cluster", *map(str, words)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C for the tests must not end the guard first
    )


def guard(cluster: Cluster, pid: int) -> None:
    """Wait for the end of `pid` or of the cluster, then clean up."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        cluster.down()
        return
    while cluster.is_up():
        ended, _, _ = select.select([process], [], [], 2.0)
        if ended:
            cluster.down()
            return
