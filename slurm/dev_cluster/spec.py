"""What the development cluster looks like: its nodes, its ports and its folder."""

import getpass
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

DEFAULT_DIR = Path("/tmp") / f"heterps-slurm-{os.getuid()}"
DEFAULT_PORT = 17800
MAX_DIR_LENGTH = 60  # unix sockets below it must stay under 108 bytes


class ClusterError(RuntimeError):
    """The cluster cannot do what was asked; the text says why and what helps."""


@dataclass(frozen=True)
class Node:
    """One node: a slurmd with hardware of its own invention."""

    name: str
    partition: str
    num_cpus: int = 4
    num_gpus: int = 0
    memory_mb: int = 2000


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
    def conf(self) -> Path:
        return self.folder / "etc/slurm.conf"

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


def can_isolate() -> bool:
    """Whether this user may make name spaces (root may, most others not)."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--uts", "--mount", "--ipc", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0
