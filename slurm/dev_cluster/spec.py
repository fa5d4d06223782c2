"""What the development cluster looks like: its nodes, its ports and its folder."""

import getpass
import json
import math
import os
import shutil
import socket
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

DEFAULT_DIR = Path("/tmp") / f"heterps-slurm-{os.getuid()}"
DEFAULT_PORT = 17800
MAX_DIR_LENGTH = 60  # unix sockets below it must stay under 108 bytes


class ClusterError(RuntimeError):
    """The cluster cannot do what was asked; the text says why and what helps."""


@dataclass(frozen=True)
class NodeLimits:
    """What makes a node unlike others: enforced by the kernel, not invented."""

    cores: float  # CPU quota, a fraction of the host's cores
    link_mbit: float | None = None  # each way; None: as fast as the bridge


@dataclass(frozen=True)
class Node:
    """One node: a slurmd with hardware of its own invention, or with real limits."""

    name: str
    partition: str
    num_cpus: int = 4
    num_gpus: int = 0
    memory_mb: int = 3000
    limits: NodeLimits | None = None

    @classmethod
    def limited(
        cls, name: str, partition: str, cores: float, memory_mb: int, link_mbit: float | None
    ) -> "Node":
        """A node with limits; Slurm counts whole CPUs."""
        limits = NodeLimits(cores, link_mbit)
        return cls(name, partition, math.ceil(cores), 0, memory_mb, limits)


NODES = (
    Node("c1", "cpu"),
    Node("c2", "cpu"),
    Node("g1", "gpu", num_gpus=2),
    Node("g2", "gpu", num_gpus=2),
    Node("m1", "mem", memory_mb=8000),
)


@dataclass(frozen=True)
class ClusterSpec:
    """One cluster; all its paths follow from its folder, all its ports from the first."""

    folder: Path
    port: int = DEFAULT_PORT
    nodes: tuple[Node, ...] = NODES
    isolate: bool = True  # own host name, /dev/shm and IPC per node, as real nodes have

    def __post_init__(self) -> None:
        if len(str(self.folder)) > MAX_DIR_LENGTH:
            raise ClusterError(
                f"the cluster's folder {self.folder} has {len(str(self.folder))} characters; "
                f"the sockets in it allow {MAX_DIR_LENGTH}: choose a shorter one"
            )

    @property
    def unlike(self) -> bool:
        """Whether nodes have limits, and so name spaces, addresses and cgroups of their own."""
        return any(node.limits is not None for node in self.nodes)

    @property
    def conf(self) -> Path:
        return self.folder / "etc/slurm.conf"

    @property
    def hosts(self) -> Path:
        return self.folder / "etc/hosts"

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge/socket"

    def pid_file(self, daemon: str) -> Path:
        return self.folder / "run" / f"{daemon}.pid"

    def log_file(self, daemon: str) -> Path:
        return self.folder / "log" / f"{daemon}.log"

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"no node {name!r}; there are {', '.join(n.name for n in self.nodes)}")

    @property
    def subnet(self) -> str:
        """First three numbers of the bridge's addresses; of the port, as clusters may coexist."""
        return f"10.77.{self.port % 250}"

    @property
    def controller_address(self) -> str:
        return f"{self.subnet}.254" if self.unlike else "127.0.0.1"

    def address(self, name: str) -> str:
        index = self.nodes.index(self.node(name)) + 1
        return f"{self.subnet}.{index}" if self.unlike else "127.0.0.1"

    def environment(self) -> dict[str, str]:
        """The environment of daemons and clients: one variable finds the cluster."""
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        own = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        return {**own, "PATH": path, "SLURM_CONF": str(self.conf)}

    @property
    def user(self) -> str:
        return getpass.getuser()

    @property
    def host(self) -> str:
        return socket.gethostname().partition(".")[0]

    def save(self) -> None:
        """Let later commands on this folder know the nodes."""
        state = {"port": self.port, "nodes": [asdict(node) for node in self.nodes]}
        (self.folder / "etc/nodes.json").write_text(json.dumps(state))

    @classmethod
    def of_folder(cls, folder: Path, port: int) -> "ClusterSpec":
        """The cluster that was started in a folder; the plain one if none was."""
        plain = cls(folder, port, isolate=can_isolate())
        try:
            state = json.loads((folder / "etc/nodes.json").read_text())
        except FileNotFoundError:
            return plain
        nodes = [
            Node(**{**node, "limits": NodeLimits(**node["limits"]) if node["limits"] else None})
            for node in state["nodes"]
        ]
        return cls(folder, state["port"], tuple(nodes), plain.isolate)


def can_isolate() -> bool:
    """Whether this user may make name spaces (root may, most others not)."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--uts", "--mount", "--ipc", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0
