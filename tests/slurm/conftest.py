"""The development cluster for the tests of this folder: started once, always stopped."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.dev_cluster.cluster import DevCluster, missing_programs
from slurm.dev_cluster.guard import guarded
from slurm.dev_cluster.spec import NODES, ClusterSpec, can_isolate
from tests.slurm.client import SlurmClient

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[DevCluster]:
    """A running cluster in a folder and on ports of its own."""
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
        spec = ClusterSpec(Path(folder), free_ports(1 + len(NODES)), isolate=can_isolate())
        if missing := missing_programs(spec):
            problem = (
                f"SLURM IS NOT INSTALLED (no {', '.join(missing)}): nothing here was tested "
                "on a cluster; as root: slurm/dev_cluster/cluster install"
            )
            if os.environ.get("CI"):
                pytest.fail(problem)
            pytest.skip(problem)
        # guarded: pytest-timeout ends the process without running what follows the yield
        with guarded(DevCluster(spec)) as cluster:
            yield cluster


@pytest.fixture
def slurm(slurm_cluster: DevCluster) -> Iterator[SlurmClient]:
    """Submits to the cluster and waits with limits; ends a test's jobs, revives its nodes."""
    client = SlurmClient(slurm_cluster)
    try:
        yield client
    finally:
        client.clean_up()


@pytest.fixture
def here(slurm: SlurmClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """For code that asks the Slurm of its own environment: that is the test's cluster."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])


def free_ports(count: int) -> int:
    """The first of `count` neighbouring free ports, below those that clients are given.

    Processes with neighbouring numbers, such as workers of one pytest, look in different places.
    """
    for first in range(20_000 + 97 * os.getpid() % 8_000, 32_000, count):
        if all(_is_free(first + i) for i in range(count)):
            return first
    raise RuntimeError("no free ports between 20000 and 32000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
