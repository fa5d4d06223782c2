"""Up, down, and the things that happen to real nodes."""

import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from slurm.dev_cluster.config import write_config
from slurm.dev_cluster.processes import pid_of, running, signal_all, step_processes, stop
from slurm.dev_cluster.spec import ClusterError, ClusterSpec

PROGRAMS = ("slurmctld", "slurmd", "munged", "sinfo")
UP_LIMIT_SECONDS = 30.0


def missing_programs(spec: ClusterSpec) -> list[str]:
    """The parts of Slurm that this machine lacks."""
    path = spec.environment()["PATH"]
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


@dataclass(frozen=True)
class Cluster:
    """A cluster made of a spec; holds no state besides the folder."""

    spec: ClusterSpec

    def is_up(self) -> bool:
        return pid_of(self.spec.pid_file("slurmctld")) is not None

    def up(self) -> None:
        """Start everything and wait until every node is idle; a failed start leaves nothing."""
        if missing := missing_programs(self.spec):
            raise ClusterError(
                f"not installed: {', '.join(missing)}; as root: slurm/dev_cluster/cluster install"
            )
        if self.is_up():
            raise ClusterError(f"a cluster is up already in {self.spec.folder}")
        try:
            write_config(self.spec)
            self._start_munged()
            self._run(["slurmctld", "-c", "-f", self.spec.conf], "slurmctld")
            for node in self.spec.nodes:
                self.start_node(node.name)
            self._wait_until_idle()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End all daemons and all job processes, hard: the state is of no use afterwards."""
        slurmds = [self.spec.pid_file(f"slurmd.{node.name}") for node in self.spec.nodes]
        stop([*slurmds, self.spec.pid_file("slurmctld")], signal.SIGKILL)
        signal_all(step_processes(self.spec), signal.SIGKILL)
        stop([self.spec.pid_file("munged")], signal.SIGTERM)

    def status(self) -> str:
        return self._client(["sinfo", "-N", "-o", "%N %P %T %C %G %E"])

    def kill_node(self, name: str) -> None:
        """A node dies as real ones do: slurmd, its steps and their tasks, all at once."""
        pid_file = self.spec.pid_file(f"slurmd.{self.spec.node(name).name}")
        slurmd = pid_of(pid_file)
        if slurmd is None:
            raise ClusterError(f"node {name} is not running; start it: start-node {name}")
        signal_all([slurmd, *step_processes(self.spec, name)], signal.SIGKILL)
        pid_file.unlink(missing_ok=True)

    def start_node(self, name: str) -> None:
        """Start a node's slurmd; its tasks inherit the name spaces that it is given here."""
        spec = self.spec
        command = ["slurmd", "-N", spec.node(name).name, "-f", str(spec.conf)]
        if spec.isolate:
            inside = (
                f"hostname {name} && mount --bind {spec.folder}/etc/hosts /etc/hosts && "
                f"mount -t tmpfs -o mode=1777 shm-{name} /dev/shm && exec {shlex.join(command)}"
            )
            spaces = ["--uts", "--mount", "--ipc", "--propagation", "private"]
            command = ["unshare", *spaces, "sh", "-c", inside]
        self._run(command, f"slurmd.{name}")

    def _start_munged(self) -> None:
        munge = self.spec.folder / "munge"
        words = ["--force", "--num-threads=4", f"--key-file={munge}/key"]
        words += [f"--socket={self.spec.munge_socket}", f"--seed-file={munge}/seed"]
        words += [f"--pid-file={self.spec.pid_file('munged')}"]
        words += [f"--log-file={self.spec.log_file('munged')}"]
        self._run(["munged", *words], "munged")

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
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.spec.environment(), timeout=30
        )
        if done.returncode != 0:
            raise ClusterError(f"{shlex.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def _wait_until_idle(self) -> None:
        give_up = time.monotonic() + UP_LIMIT_SECONDS
        controller = pid_of(self.spec.pid_file("slurmctld"))
        while time.monotonic() < give_up:
            try:
                lines = self._client(["sinfo", "-h", "-N", "-o", "%N %T"]).splitlines()
            except ClusterError:
                lines = []  # the controller does not answer yet
            if len({line.split()[0] for line in lines if line.endswith(" idle")}) == len(
                self.spec.nodes
            ):
                return
            controller = controller or pid_of(self.spec.pid_file("slurmctld"))
            if controller is not None and not running(controller):
                raise ClusterError(f"slurmctld ended:\n{self._tail('slurmctld')}")
            time.sleep(0.05)
        raise ClusterError(
            f"nodes not idle after {UP_LIMIT_SECONDS:.0f} s; see {self.spec.folder}/log"
        )
