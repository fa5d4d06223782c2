"""Files of unlike nodes: what each has, and the pools that a plan may use on them.

name: thin-pipe
nodes:
  s1: {partition: slow, cores: 0.2, memory_mb: 2500}
  f1: {partition: fast, cores: 0.8, memory_mb: 4000}
links: {s1: 200, f1: 200}                       # Mbit/s each way; without one: no limit
pools: {slow: {price_per_hour: 0.04}, fast: {price_per_hour: 0.4}}
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_hpc.errors import UserError
from slurm.dev_cluster.spec import ClusterError, Node

SHIPPED = Path(__file__).with_name("nodes")
KEYS = {"name", "nodes", "links", "pools"}
NODE_KEYS = {"partition", "cores", "memory_mb"}
POOL_KEYS = {"price_per_hour"}
NODE_NAME = re.compile(r"[a-z][a-z0-9]{0,7}")  # a part of an interface's name, which has 15 letters
MIN_CORES = 0.1  # the kernel gives no less than 1 ms of a period of 10 ms
SYSTEM_MEMORY_MB = 300  # of a node, which ranks cannot have: slurmd, steps and page tables
UNLIMITED_MBIT = 10_000  # about what the host's own network gives
MIN_MEMORY_MB = 2 * SYSTEM_MEMORY_MB
HOST_MEMORY_MB = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
HOST_SHARE = 0.1  # of the cores: the kernel's network, the controller, what starts jobs
ALL_NODES = "all"  # the partition of every node, which slurm.conf has besides


@dataclass(frozen=True)
class NodesFile:
    """Nodes that differ, and what an hour of each partition costs."""

    name: str
    nodes: tuple[Node, ...]
    prices: dict[str, float]

    @property
    def partitions(self) -> dict[str, list[Node]]:
        """The nodes of every partition, in the file's order."""
        names = dict.fromkeys(node.partition for node in self.nodes)
        return {name: [n for n in self.nodes if n.partition == name] for name in names}

    def cluster_file(self) -> str:
        """The same cluster as heterps wants it: a pool for every partition."""
        lines = [f"# Made by `cluster pools` from the nodes of {self.name}.", f"name: {self.name}"]
        lines.append("pools:")
        for partition, nodes in self.partitions.items():
            memory_gb = (min(node.memory_mb for node in nodes) - SYSTEM_MEMORY_MB) / 1024
            lines += [
                f"  - name: {partition}",
                f"    partition: {partition}",
                f"    price_per_hour: {self.prices[partition]:g}",
                f"    max_nodes: {len(nodes)}",
                f"    cores_per_node: {min(node.num_cpus for node in nodes)}",
                f"    memory_per_node_gb: {memory_gb:.2f}",
            ]
        return "\n".join([*lines, *self._single_links()]) + "\n"

    def _single_links(self) -> list[str]:
        """The network card of a pool's only node, which no measurement within the pool shows."""
        single = {name: nodes[0] for name, nodes in self.partitions.items() if len(nodes) == 1}
        lines = ["links:"] if single else []
        for name, node in single.items():
            mbit = None if node.limits is None else node.limits.link_mbit
            rate = (mbit or UNLIMITED_MBIT) * 1e6 / 8
            ends = f"pools: [{name}, {name}]"
            lines.append(f"  - {{{ends}, latency_seconds: 3.0e-05, bytes_per_second: {rate:.4e}}}")
        return lines


def crowding(nodes: NodesFile, num_host_cores: int) -> str:
    """A line about quotas that leave the host itself too little; empty if they do not."""
    total = _total(nodes.nodes)
    if total <= (1 - HOST_SHARE) * num_host_cores:
        return ""
    return (
        f"\nnote: the nodes have {total:g} of this host's {num_host_cores} cores; when all are "
        "busy, each lacks its part of what the host needs itself"
    )


def _total(nodes: Sequence[Node]) -> float:
    """Quotas of all nodes together."""
    return sum(node.limits.cores for node in nodes if node.limits is not None)


def find_nodes_file(name: str) -> Path:
    """A path, or the name of a shipped file."""
    path = Path(name)
    shipped = SHIPPED / f"{name}.yaml"
    if path.is_file():
        return path
    if shipped.is_file():
        return shipped
    names = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.yaml")))
    raise ClusterError(f"no file {name!r} of nodes; shipped ones: {names}")


def load_nodes(path: Path, num_host_cores: int | None = None) -> NodesFile:
    """Read and check a file; every mistake is one line that names the file."""
    try:
        from heterps_hpc.bounded_yaml import read_data
    except ImportError:
        raise ClusterError(
            "a file of nodes needs PyYAML; run `make setup`, or set PYTHON to one that has it"
        ) from None
    try:
        content = read_data(path, path.read_text())
    except UserError as error:
        raise ClusterError(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: {error}") from None
    cores = num_host_cores or len(os.sched_getaffinity(0))
    try:
        return _parse(content, path.stem, cores)
    except ClusterError as error:
        raise ClusterError(f"{path.name}: {error}") from None


def _parse(content: object, name: str, num_host_cores: int) -> NodesFile:
    top = _mapping(content, "the file", KEYS)
    links = _mapping(top.get("links") or {}, "links")
    entries = _mapping(top.get("nodes"), "nodes")
    for node in links:
        if node not in entries:
            raise ClusterError(f"a link names node {node!r}; there are {', '.join(entries)}")
    nodes = tuple(_node(each, entries[each], links.get(each)) for each in entries)
    _check_sum(nodes, num_host_cores)
    pools = _mapping(top.get("pools"), "pools")
    partitions = dict.fromkeys(node.partition for node in nodes)
    for partition in partitions:
        if partition not in pools:
            raise ClusterError(
                f"partition {partition!r} has no pool; add `{partition}: {{price_per_hour: …}}` "
                "under `pools`"
            )
    for pool in pools:
        if pool not in partitions:
            raise ClusterError(
                f"pool {pool!r} has no nodes; partitions are {', '.join(partitions)}"
            )
    prices = {
        pool: _number(_mapping(pools[pool], f"pool {pool}", POOL_KEYS), "price_per_hour", pool)
        for pool in pools
    }
    return NodesFile(str(top.get("name", name)), nodes, prices)


def _node(name: str, entry: object, link: object) -> Node:
    if not NODE_NAME.fullmatch(name):
        raise ClusterError(
            f"node name {name!r} must be one to eight small letters and digits, a letter first"
        )
    fields = _mapping(entry, f"node {name}", NODE_KEYS)
    partition = fields.get("partition")
    if not isinstance(partition, str) or not re.fullmatch(r"[A-Za-z][\w-]*", partition):
        raise ClusterError(f"node {name}: partition is {partition!r}; give it a name")
    if partition.lower() in (ALL_NODES, "default"):
        raise ClusterError(f"node {name}: Slurm has a partition {partition!r} already; rename it")
    cores = _number(fields, "cores", name)
    if cores < MIN_CORES:
        raise ClusterError(
            f"node {name}: {cores:g} cores are less than a quota can give; at least {MIN_CORES}"
        )
    memory = _number(fields, "memory_mb", name)
    if memory < MIN_MEMORY_MB:
        raise ClusterError(
            f"node {name}: memory_mb is {memory:g}; slurmd and a rank need {MIN_MEMORY_MB}"
        )
    if memory > HOST_MEMORY_MB:
        raise ClusterError(
            f"node {name}: memory_mb is {memory:g}, this host has {HOST_MEMORY_MB}; lower it"
        )
    mbit = None if link is None else _number({"link": link}, "link", name)
    return Node.limited(name, partition, cores, int(memory), mbit)


def _check_sum(nodes: tuple[Node, ...], num_host_cores: int) -> None:
    """Quotas that the host cannot give all at once would be no quotas."""
    total = _total(nodes)
    if total > num_host_cores + 1e-9:
        raise ClusterError(
            f"the nodes have {total:g} cores together, this host has {num_host_cores}; "
            "lower `cores`"
        )


def _mapping(value: object, what: str, keys: set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ClusterError(f"{what} must be a mapping, got {value!r}")
    unknown = sorted(set(value) - keys) if keys is not None else []
    if unknown:
        raise ClusterError(
            f"{what}: unknown key {unknown[0]!r}; keys are {', '.join(sorted(keys or ()))}"
        )
    return value


def _number(fields: Mapping[str, Any], key: str, where: str) -> float:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise ClusterError(f"{where}: {key} is {value!r}; it must be a positive number")
    return float(value)
