"""A launcher's process and all that it starts: they end together, whatever happens to us.

Ranks cannot be found by process group (MPICH's hydra gives each rank a session of its own) nor by
parenthood (a killed mpirun leaves them to init). So every process of one start carries a mark in
its environment, and the end of the start is the end of everything that carries it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from heterps_hpc.pid_namespace import pid_namespace

log = logging.getLogger(__name__)

MARK = "HETERPS_START"
LAUNCHER_PID = "HETERPS_LAUNCHER_PID"  # ranks end with this process
LAUNCHER_NAMESPACE = "HETERPS_LAUNCHER_NAMESPACE"  # in which this is its number
_RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_PR_SET_PDEATHSIG = 1

OnLine = Callable[[str], None]


class ProcessTree:
    """One running launcher; its output goes line by line to a file and to `on_line`."""

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str],
        output: Path,
        on_line: OnLine,
    ) -> None:
        self._mark = uuid.uuid4().hex
        self.killed = False  # whether we had to end ranks ourselves
        libc = ctypes.CDLL(None, use_errno=True)  # loaded here: nothing may be loaded after fork
        self._process = subprocess.Popen(
            command,
            env={
                **environment,
                MARK: self._mark,
                LAUNCHER_PID: str(os.getpid()),
                LAUNCHER_NAMESPACE: pid_namespace(),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            # if we are killed outright, mpirun is too; its ranks watch us (runtime.rank_process)
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        self._reader = threading.Thread(target=self._copy, args=(output, on_line), daemon=True)
        self._reader.start()

    def _copy(self, output: Path, on_line: OnLine) -> None:
        """Ranks would block if nobody took their output, so a full disk or a terminal that is gone
        only costs lines."""
        assert self._process.stdout is not None
        with contextlib.ExitStack() as stack:
            file = None
            try:
                file = stack.enter_context(output.open("ab", buffering=0))
            except OSError as error:
                log.warning("%s: not written: %s", output, error.strerror)
            for line in self._process.stdout:
                if file is not None:
                    with contextlib.suppress(OSError):
                        file.write(line.encode(errors="replace"))
                with contextlib.suppress(OSError):
                    on_line(line.rstrip("\n"))

    def wait(self, seconds: float) -> int | None:
        """The exit status, or None if it still runs after so many seconds."""
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def ranks(self) -> dict[int, psutil.Process]:
        """The ranks that there are now, by number: of processes with the same one the oldest, as
        what a rank starts inherits its environment."""
        found: dict[int, psutil.Process] = {}
        for process, environment in self._marked():
            numbers = (environment.get(name, "") for name in _RANK_VARIABLES)
            rank = next((int(number) for number in numbers if number.isdigit()), None)
            if rank is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.create_time() < found.setdefault(rank, process).create_time():
                        found[rank] = process
        return found

    def signal_ranks(self, number: signal.Signals) -> int:
        """Send a signal to the ranks alone; how many there were."""
        ranks = self.ranks()
        for process in ranks.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return len(ranks)

    def end(self, grace_seconds: float = 5.0) -> int:
        """End the launcher and every process it left; its exit status."""
        if self._process.poll() is None:
            self.killed = True
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # it may have been stopped
            self.wait(grace_seconds)
        deadline = time.monotonic() + grace_seconds
        while (left := [process for process, _ in self._marked()]) and time.monotonic() < deadline:
            if not self.killed:
                log.warning("ending %d processes that outlived mpirun", len(left))
            self.killed = True
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=0.5)
        status = self._process.wait()
        self._reader.join(timeout=2.0)
        return status

    def _marked(self) -> list[tuple[psutil.Process, dict[str, str]]]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                environment = process.environ()
            except (psutil.Error, OSError):
                continue  # gone meanwhile, or another user's
            if environment.get(MARK) == self._mark:
                found.append((process, environment))
        return found
