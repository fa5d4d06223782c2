"""The partitions of a Slurm cluster as `sinfo` lists them: what a cluster file is drafted from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from heterps_hpc.cluster import Cluster
from heterps_hpc.errors import UserError
from heterps_hpc.launch.slurm.slurm_cli import call

# partition, nodes, cores and MB of a node, its generic resources; a line per kind of node
FORMAT = "%R|%D|%c|%m|%G"


@dataclass(frozen=True)
class Partition:
    """Nodes of one partition; where they differ, what the smallest has."""

    name: str
    num_nodes: int
    cores_per_node: int
    memory_per_node_gb: float
    gpus_per_node: int


def partitions() -> list[Partition]:
    """All partitions that Slurm shows to this user."""
    return parse(call("sinfo", "--noheader", f"--format={FORMAT}"))


def check_partitions(cluster: Cluster) -> None:
    """Refuse a pool on a partition that is not there; Slurm would after others were measured."""
    known = call("sinfo", "--all", "--noheader", "--format=%R").split()
    for pool in cluster.pools:
        for name in (pool.partition or "").split(","):
            if name and name not in known:
                raise UserError(
                    f"pool {pool.name!r} is on partition {name!r}, which Slurm does not have; it "
                    f"has {', '.join(dict.fromkeys(known))}"
                )


def parse(output: str) -> list[Partition]:
    """From what sinfo prints; a `+` says that other nodes of the line have more."""
    found: dict[str, Partition] = {}
    for line in output.split("\n"):
        fields = line.strip().split("|")
        if len(fields) != 5 or not _number(fields[1]):
            continue
        name, nodes, cores, megabytes, resources = fields
        here = Partition(
            name,
            _number(nodes),
            max(_number(cores), 1),
            round(_number(megabytes) / 1000, 1) or 1.0,
            _gpus(resources),
        )
        before = found.get(name)
        found[name] = here if before is None else _joined(before, here)
    return list(found.values())


def _joined(one: Partition, other: Partition) -> Partition:
    return Partition(
        one.name,
        one.num_nodes + other.num_nodes,
        min(one.cores_per_node, other.cores_per_node),
        min(one.memory_per_node_gb, other.memory_per_node_gb),
        min(one.gpus_per_node, other.gpus_per_node),
    )


def _number(text: str) -> int:
    found = re.match(r"\d+", text.strip())
    return int(found[0]) if found else 0


def _gpus(resources: str) -> int:
    """Of `gpu:2`, `gpu:a100:4(S:0-1),shard:8` and the like."""
    return sum(int(count) for count in re.findall(r"\bgpu(?::[^:,(]+)?:(\d+)", resources))
