"""What the pages say of Slurm, typed as printed on the development cluster (`make test-docs`)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import pytest

from heterps_hpc.cluster import Cluster
from heterps_hpc.launch.slurm.partitions import partitions
from slurm.dev_cluster.spec import NODES
from tests.docs.pages import PAGES, ROOT, blocks, name_of
from tests.docs.sandbox import Sandbox, heterps, trained_sandbox
from tests.docs.test_executed import NEEDS_SLURM, typed

FULL = bool(os.environ.get("HETERPS_FULL"))
COMMANDS = {
    f"{name_of(page)}:{line}": command
    for page in PAGES
    for block in blocks(page.read_text())
    for line, command in typed(block)
    if command.startswith("heterps")
    and (NEEDS_SLURM.search(command) or command.startswith("heterps cancel"))
    and "--in-allocation" not in command  # test_own_scripts.py
}


def test_the_example_fits_the_development_cluster() -> None:
    """docs/slurm.md lets people try it there: measuring fills nodes, with memory for each rank."""
    for pool in Cluster.load(ROOT / "examples" / "cluster_local.yaml").pools:
        nodes = [node for node in NODES if node.partition == pool.partition]
        assert nodes, pool.partition
        assert pool.memory_per_node_gb * 1e3 <= min(node.memory_mb for node in nodes)
        assert pool.cores_per_node <= min(node.num_cpus for node in nodes)


@pytest.mark.usefixtures("here")
def test_partitions_are_read_as_slurm_lists_them() -> None:
    """What `heterps init` drafts a cluster file from."""
    found = {partition.name: partition for partition in partitions()}
    assert found.keys() == {node.partition for node in NODES}
    for name, partition in found.items():
        nodes = [node for node in NODES if node.partition == name]
        assert partition.num_nodes == len(nodes)
        assert partition.cores_per_node == min(node.num_cpus for node in nodes)
        assert partition.gpus_per_node == min(node.num_gpus for node in nodes)
        megabytes = min(node.memory_mb for node in nodes)
        assert partition.memory_per_node_gb == pytest.approx(megabytes / 1000)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with trained_sandbox(tmp_path_factory.mktemp("pages"), measures=True) as made:
        yield made


@pytest.mark.skipif(not FULL, reason="the long form: make test-docs")
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("place", COMMANDS)
def test_commands_on_the_cluster(place: str, sandbox: Sandbox) -> None:
    words = shlex.split(COMMANDS[place], comments=True)
    run = sandbox.planned()
    if words[1] == "cancel":
        heterps(["launch", str(run), "--on", "slurm", "--no-wait"])
    heterps([str(run) if word == "RUN" else word for word in words[1:]])
    if "--no-wait" in words:
        heterps(["status", str(run)])
        heterps(["cancel", str(run)])
