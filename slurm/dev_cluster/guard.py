"""A cluster that ends with the process that started it, even if that is killed."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm.dev_cluster.cluster import DevCluster

ROOT = Path(__file__).resolve().parents[2]


def start_guard(cluster: DevCluster, pid: int | None = None) -> None:
    """Leave behind a process that takes the cluster down once `pid` or its controller has ended."""
    words = ["--dir", str(cluster.spec.folder), "guard"]
    words += [] if pid is None else ["--pid", str(pid)]
    process = subprocess.Popen(
        [sys.executable, "-m", "slurm.dev_cluster", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C for the tests must not end the guard first
    )
    cluster.spec.pid_file("guard").write_text(f"{process.pid}\n")


@contextmanager
def guarded(cluster: DevCluster) -> Iterator[DevCluster]:
    """The cluster up for as long as the block runs, and down even if this process is killed."""
    cluster.up()
    start_guard(cluster, os.getpid())
    try:
        yield cluster
    finally:
        cluster.down()


def guard(cluster: DevCluster, pid: int | None) -> None:
    """Wait for the end of `pid` or of the controller, then clean up."""
    watched = [] if pid is None else [pid]
    watched += [found] if (found := cluster.controller()) is not None else []
    try:
        handles = [os.pidfd_open(each) for each in watched]
    except ProcessLookupError:
        handles = []
    if handles:
        select.select(handles, [], [])
    cluster.down()
