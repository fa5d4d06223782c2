"""Finding and ending the processes of one cluster, and no others."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from slurm.dev_cluster.spec import ClusterSpec

PROC = Path("/proc")


def pid_of(pid_file: Path) -> int | None:
    """The running process that a pid file names."""
    with suppress(OSError, ValueError):
        pid = int(pid_file.read_text())
        if running(pid):
            return pid
    return None


def running(pid: int) -> bool:
    """Whether the process exists; a zombie does not count."""
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z"


def first_of_its_kind(pid: int) -> bool:
    """Whether the process is number 1 of a PID name space below ours."""
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return line.split()[2:] == ["1"]
    return False


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def stop(pid_files: list[Path], number: signal.Signals, limit_seconds: float = 6.0) -> None:
    """Signal the daemons, wait for them together, and kill what is left."""
    pids = [pid for pid in map(pid_of, pid_files) if pid is not None]
    signal_all(pids, number)
    give_up = time.monotonic() + limit_seconds
    while any(map(running, pids)) and time.monotonic() < give_up:
        time.sleep(0.02)
    signal_all(filter(running, pids), signal.SIGKILL)
    for pid_file in pid_files:
        pid_file.unlink(missing_ok=True)


def step_processes(spec: ClusterSpec, node: str | None = None) -> list[int]:
    """The cluster's slurmstepd processes (of one node) and all that they started."""
    steps = [pid for pid in _all_pids() if _name(pid) == "slurmstepd" and _ours(spec, pid, node)]
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        stat = _stat(pid)
        if stat is not None:
            children.setdefault(stat[1], []).append(pid)
    found: list[int] = []
    while steps:
        pid = steps.pop()
        found.append(pid)
        steps.extend(children.get(pid, ()))
    return found


def _ours(spec: ClusterSpec, pid: int, node: str | None) -> bool:
    """A slurmstepd has its slurmd's environment, and its log file open."""
    try:
        environment = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        if f"SLURM_CONF={spec.conf}".encode() not in environment:
            return False
        if node is None:
            return True
        log = spec.log_file(f"slurmd.{node}")
        return any(fd.readlink() == log for fd in (PROC / str(pid) / "fd").iterdir())
    except OSError:  # it ended while we looked
        return False


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _name(pid: int) -> str:
    with suppress(OSError):
        return (PROC / str(pid) / "comm").read_text().strip()
    return ""


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and parent."""
    with suppress(OSError, IndexError, ValueError):
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[1])
    return None
