"""CPU quota and memory limit of each node, and the list of all its processes.

Every process of a cluster of unlike nodes is in one of its cgroups, so that nothing can hide from
`down`, whatever was killed before.
"""

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm.dev_cluster.processes import signal_all
from slurm.dev_cluster.spec import ClusterError, ClusterSpec, Node

ROOT = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 10_000  # short: a node that has spent its quota stands still for the rest
CONTROLLER = "controller"  # the group of the daemons on the host, without limits
END_SECONDS = 5.0


@dataclass(frozen=True)
class Cgroups:
    """The groups of one cluster, in version 1 (a tree per controller) or 2 (one tree)."""

    name: str
    root: Path = ROOT

    @classmethod
    def of(cls, spec: ClusterSpec) -> "Cgroups":
        return cls(f"heterps-slurm-{spec.port}")

    @property
    def is_version_2(self) -> bool:
        controllers = self.root / "cgroup.controllers"
        return controllers.exists() and "cpu" in controllers.read_text().split()

    @property
    def trees(self) -> tuple[Path, Path]:
        """Where CPU and where memory is limited; the same in version 2."""
        if self.is_version_2:
            return self.root, self.root
        cpu = self.root / "cpu"
        return (cpu if cpu.is_dir() else self.root / "cpu,cpuacct"), self.root / "memory"

    def folders(self, group: str) -> list[Path]:
        """The group's folder in each tree, once."""
        return list(dict.fromkeys(tree / self.name / group for tree in self.trees))

    def make(self, group: str, node: Node | None = None) -> None:
        """A group, with the limits of a node."""
        cpu = self.trees[0]
        try:
            if self.is_version_2:
                (cpu / self.name).mkdir(exist_ok=True)
                for folder in (cpu, cpu / self.name):
                    (folder / "cgroup.subtree_control").write_text("+cpu +memory")
            for folder in self.folders(group):
                folder.mkdir(parents=True, exist_ok=True)
            self._go_first()
            if node is not None and node.limits is not None:
                self._limit(group, node.limits.cores, node.memory_mb)
        except OSError as error:
            raise ClusterError(
                f"the host provides no cgroup for {group} ({error.strerror} at {error.filename}); "
                "`cluster up` without --nodes needs none"
            ) from None

    def _go_first(self) -> None:
        """Nodes get their quotas before other work of the host: a node's speed is its own."""
        cpu = self.trees[0] / self.name
        if self.is_version_2:
            (cpu / "cpu.weight").write_text("10000")
        else:
            (cpu / "cpu.shares").write_text("262144")

    def _limit(self, group: str, cores: float, memory_mb: int) -> None:
        cpu, memory = (tree / self.name / group for tree in self.trees)
        quota = round(cores * PERIOD_MICROSECONDS)
        if self.is_version_2:
            (cpu / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
            (memory / "memory.max").write_text(str(memory_mb * 2**20))
        else:
            (cpu / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (cpu / "cpu.cfs_quota_us").write_text(str(quota))
            (memory / "memory.limit_in_bytes").write_text(str(memory_mb * 2**20))

    def enter(self, group: str) -> list[str]:
        """Words before a command that make it run in the group."""
        steps = [f"echo $$ > '{folder}/cgroup.procs'" for folder in self.folders(group)]
        return ["sh", "-c", " && ".join([*steps, 'exec "$@"']), "sh"]

    def pids(self, group: str = "*") -> list[int]:
        """All processes of a group, or of all groups."""
        found: set[int] = set()
        for tree in dict.fromkeys(self.trees):
            for file in (tree / self.name).glob(f"{group}/cgroup.procs"):
                with suppress(OSError):  # the group was removed meanwhile
                    found.update(map(int, file.read_text().split()))
        return sorted(found)

    def kill(self, group: str = "*") -> None:
        """End all processes of a group; they may fork while we look, so look again."""
        give_up = time.monotonic() + END_SECONDS
        while pids := [pid for pid in self.pids(group) if pid != os.getpid()]:
            if time.monotonic() > give_up:
                raise ClusterError(f"processes {pids} do not end")
            signal_all(pids, signal.SIGKILL)
            time.sleep(0.02)

    def remove(self) -> None:
        """End everything and take the groups away."""
        self.kill()
        give_up = time.monotonic() + END_SECONDS
        for tree in dict.fromkeys(self.trees):
            while (tree / self.name).is_dir():
                for folder in sorted((tree / self.name).glob("**/"), reverse=True):
                    with suppress(OSError):  # a process in it is still on its way out
                        folder.rmdir()
                if time.monotonic() > give_up:
                    raise ClusterError(f"{tree / self.name} cannot be removed")
                time.sleep(0.01)
