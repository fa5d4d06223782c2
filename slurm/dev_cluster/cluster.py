"""Up, down, and the things that happen to real nodes."""

import os
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm.dev_cluster.cgroups import CONTROLLER, Cgroups
from slurm.dev_cluster.config import write_config
from slurm.dev_cluster.network import Network
from slurm.dev_cluster.node_start import node_command
from slurm.dev_cluster.pinning import pinned
from slurm.dev_cluster.processes import (
    first_of_its_kind,
    pid_of,
    running,
    signal_all,
    step_processes,
    stop,
)
from slurm.dev_cluster.spec import ClusterError, ClusterSpec, Node

PROGRAMS = ("slurmctld", "slurmd", "munged", "sinfo")
UNLIKE_PROGRAMS = ("ip", "tc", "unshare", "nsenter", "setsid", "bash")
UP_LIMIT_SECONDS = 30.0


def missing_programs(spec: ClusterSpec, names: Sequence[str] = PROGRAMS) -> list[str]:
    """The parts of Slurm (or others) that this machine lacks."""
    path = spec.environment()["PATH"]
    return [name for name in names if shutil.which(name, path=path) is None]


def why_not_unlike(spec: ClusterSpec) -> str | None:
    """What keeps this user on this host from nodes that differ; None if nothing does."""
    if os.geteuid() != 0:
        return "not root"
    if missing := missing_programs(spec, UNLIKE_PROGRAMS):
        return f"no {', '.join(missing)}"
    spaces = ["unshare", "--net", "--pid", "--fork", "--mount", "--ipc", "--uts", "true"]
    if subprocess.run(spaces, capture_output=True, env=spec.environment()).returncode != 0:
        return "no name spaces"
    if not all(os.access(tree, os.W_OK) for tree in Cgroups.of(spec).trees):
        return "no cgroups that may be written"
    return None


@dataclass(frozen=True)
class DevCluster:
    """A cluster made of a spec; holds no state but its folder."""

    spec: ClusterSpec

    def is_up(self) -> bool:
        return self.controller() is not None

    def controller(self) -> int | None:
        """The process of slurmctld."""
        return pid_of(self.spec.pid_file("slurmctld"))

    def up(self) -> None:
        """Start everything and wait until every node is idle; a failed start leaves nothing."""
        if missing := missing_programs(self.spec):
            raise ClusterError(
                f"not installed: {', '.join(missing)}; as root: slurm/dev_cluster/cluster install"
            )
        if self.is_up():
            raise ClusterError(f"a cluster is up already in {self.spec.folder}")
        if self.spec.unlike and (reason := why_not_unlike(self.spec)) is not None:
            raise ClusterError(
                f"nodes that differ cannot be made here: {reason}; `cluster up` without --nodes "
                "works"
            )
        try:
            self._remove_groups_and_network()  # what a crash left
            write_config(self.spec)
            if self.spec.unlike:
                self.groups.make(CONTROLLER)
                self.network.make_bridge()
            self._start_munged()
            self._start_controller()
            for node in self.spec.nodes:
                self.start_node(node.name)
            self._wait_until_idle()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End all daemons and all job processes, hard: the state is of no use afterwards."""
        guard = self.spec.pid_file("guard")
        if pid_of(guard) != os.getpid():
            stop([guard], signal.SIGKILL)
        self._remove_groups_and_network()
        slurmds = [self.spec.pid_file(f"slurmd.{node.name}") for node in self.spec.nodes]
        stop([*slurmds, self.spec.pid_file("slurmctld")], signal.SIGKILL)
        signal_all(step_processes(self.spec), signal.SIGKILL)
        stop([self.spec.pid_file("munged")], signal.SIGTERM)
        guard.unlink(missing_ok=True)

    def _remove_groups_and_network(self) -> None:
        """All that is outside of the folder; name spaces go with their last process."""
        if os.geteuid() == 0:
            self.groups.remove()
            self.network.remove()

    @property
    def groups(self) -> Cgroups:
        return Cgroups.of(self.spec)

    @property
    def network(self) -> Network:
        return Network(self.spec)

    def status(self) -> str:
        lines = [self._client(["sinfo", "-N", "-o", "%N %P %T %C %G %E"]).rstrip()]
        for node in self.spec.nodes:
            if node.limits is not None:
                link = f"{node.limits.link_mbit:g} Mbit/s" if node.limits.link_mbit else "no limit"
                lines.append(
                    f"{node.name} {self.spec.address(node.name)}: {node.limits.cores:g} cores, "
                    f"{node.memory_mb} MB, link {link}, "
                    f"{len(self.groups.pids(node.name))} processes"
                )
        return "\n".join(lines)

    def inside(self, name: str, command: Sequence[str]) -> list[str]:
        """A command as it must be called to run in an unlike node."""
        pid = pid_of(self.spec.pid_file(f"slurmd.{self.spec.node(name).name}"))
        if self.spec.node(name).limits is None:
            raise ClusterError(
                "the nodes of this cluster do not differ from the host; run the command directly"
            )
        if pid is None:
            raise ClusterError(f"node {name} is not running; start it: start-node {name}")
        spaces = ["-t", str(pid), "--mount", "--uts", "--ipc", "--net", "--pid"]
        return [*self.groups.enter(name), "nsenter", f"--wdns={Path.cwd()}", *spaces, *command]

    def kill_node(self, name: str) -> None:
        """A node dies as real ones do: slurmd, its steps and their tasks, all at once."""
        node = self.spec.node(name)
        pid_file = self.spec.pid_file(f"slurmd.{node.name}")
        slurmd = pid_of(pid_file)
        if slurmd is None:
            raise ClusterError(f"node {name} is not running; start it: start-node {name}")
        if node.limits is not None:
            self.groups.kill(name)
            self.network.disconnect(name)
        else:
            signal_all([slurmd, *step_processes(self.spec, name)], signal.SIGKILL)
        pid_file.unlink(missing_ok=True)

    def start_node(self, name: str) -> None:
        """Start a node; a node with limits gets its cgroup before, and its link after."""
        node = self.spec.node(name)
        command = node_command(self.spec, node)
        if node.limits is None:
            self._run(command, f"slurmd.{name}")
            return
        self.groups.kill(name)
        self.network.disconnect(name)
        self.groups.make(name, node)
        (self.spec.folder / "etc" / f"boot_id.{name}").write_text(f"{uuid.uuid4()}\n")
        start = [*self.groups.enter(name), *pinned(self.spec.nodes, name), "setsid", "--fork"]
        self._run([*start, *command], f"slurmd.{name}")
        pid = self._first_process(node)
        self.spec.pid_file(f"slurmd.{name}").write_text(f"{pid}\n")
        self.network.connect(node, pid)

    def _first_process(self, node: Node) -> int:
        """The node's process 1, by its number on the host."""
        give_up = time.monotonic() + UP_LIMIT_SECONDS
        while time.monotonic() < give_up:
            for pid in self.groups.pids(node.name):
                if first_of_its_kind(pid):
                    return pid
            time.sleep(0.01)
        raise ClusterError(f"{node.name} did not start:\n{self._tail(f'slurmd.{node.name}')}")

    def _start_controller(self) -> None:
        """It binds to the address of its own host name, so unlike nodes' names are its names."""
        command = ["slurmctld", "-c", "-f", str(self.spec.conf)]
        if self.spec.unlike:
            own_names = f"mount --bind {self.spec.hosts} /etc/hosts && exec {shlex.join(command)}"
            spaces = ["unshare", "--mount", "--propagation", "private"]
            command = [*self.groups.enter(CONTROLLER), *spaces, "sh", "-c", own_names]
        self._run(command, "slurmctld")

    def _start_munged(self) -> None:
        munge = self.spec.folder / "munge"
        words = ["--force", "--num-threads=4", f"--key-file={munge}/key"]
        words += [f"--socket={self.spec.munge_socket}", f"--seed-file={munge}/seed"]
        words += [f"--pid-file={self.spec.pid_file('munged')}"]
        words += [f"--log-file={self.spec.log_file('munged')}"]
        enter = self.groups.enter(CONTROLLER) if self.spec.unlike else []
        self._run([*enter, "munged", *words], "munged")

    def _run(self, command: Sequence[object], name: str) -> None:
        """Start a daemon, which puts itself into the background."""
        log = self.spec.folder / "log" / f"{name}.out"
        with log.open("ab") as out:
            done = subprocess.run(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.spec.environment(),
                timeout=UP_LIMIT_SECONDS,
            )
        if done.returncode != 0:
            raise ClusterError(f"{name} did not start:\n{self._tail(name)}")

    def _tail(self, name: str) -> str:
        logs = (self.spec.folder / "log" / f"{name}.out", self.spec.log_file(name))
        lines = [line for log in logs if log.exists() for line in log.read_text().splitlines()]
        return "\n".join(lines[-8:])

    def _client(self, command: list[str]) -> str:
        if not self.is_up():
            raise ClusterError(f"no cluster is up in {self.spec.folder}")
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.spec.environment(), timeout=30
        )
        if done.returncode != 0:
            raise ClusterError(f"{shlex.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def _wait_until_idle(self) -> None:
        give_up = time.monotonic() + UP_LIMIT_SECONDS
        controller = self.controller()
        while time.monotonic() < give_up:
            try:
                lines = self._client(["sinfo", "-h", "-N", "-o", "%N %T"]).splitlines()
            except ClusterError:
                lines = []  # the controller does not answer yet
            if len({line.split()[0] for line in lines if line.endswith(" idle")}) == len(
                self.spec.nodes
            ):
                return
            controller = controller or self.controller()
            if controller is not None and not running(controller):
                raise ClusterError(f"slurmctld ended:\n{self._tail('slurmctld')}")
            time.sleep(0.05)
        raise ClusterError(
            f"nodes not idle after {UP_LIMIT_SECONDS:.0f} s; see {self.spec.folder}/log"
        )
