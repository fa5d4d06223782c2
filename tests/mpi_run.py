"""Start ranks from plain pytest, so that a lost rank can never hang the suite.

Each run has a time limit, and every process that it started is gone when `mpirun` returns,
whatever MPI did with sessions and process groups: ranks carry a token in their environment.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "HETERPS_TEST_TOKEN"

# The same forevery MPI: one thread per rank, many ranks on few cores.
COMMON = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "20",
    "PYTHONFAULTHANDLER": "1",
}
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    returncode: int
    output: str
    timed_out: bool

    def check(self) -> None:
        """Fail the test with what the ranks said, unless all of them ended well."""
        if self.timed_out:
            pytest.fail(f"ranks did not end in time:\n{tail(self.output)}", pytrace=False)
        if self.returncode != 0:
            pytest.fail(f"ranks ended with {self.returncode}:\n{tail(self.output)}", pytrace=False)


def mpirun(
    num_ranks: int,
    arguments: Sequence[str | Path],
    timeout: float,
    environment: Mapping[str, str] | None = None,
    through_mpi4py: bool = True,
) -> Outcome:
    """Run `python -m mpi4py ARGUMENTS` on that many ranks; a raised error ends all of them."""
    program = find_mpirun()
    command = [program, "-n", str(num_ranks), *_binding(program)]
    command += [sys.executable, *(["-m", "mpi4py"] if through_mpi4py else [])]
    command += map(str, arguments)
    token = uuid.uuid4().hex
    settings = {**os.environ, **COMMON, **OPEN_MPI, **(environment or {}), TOKEN: token}
    settings["PYTHONPATH"] = os.pathsep.join([str(ROOT), settings.get("PYTHONPATH", "")])
    # a file, not a pipe: a rank left behind could hold a pipe open forever
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            end_everything(process, token)
        log.seek(0)
        output = log.read().decode(errors="replace")
    return Outcome(process.returncode, output, timed_out)


def mpirun_pytest(num_ranks: int, tests: Iterable[str | Path], timeout: float) -> Outcome:
    """Run pytest-mpi tests: as `mpirun -n N python -m mpi4py -m pytest --with-mpi -x TESTS`."""
    options = ["--with-mpi", "-x", "--color=no", "-q", "-p", "no:cacheprovider"]
    limits = [f"--timeout={max(1, int(timeout) - 5)}", "--timeout-method=thread"]
    return mpirun(num_ranks, ["-m", "pytest", *options, *limits, *tests], timeout)


def end_everything(process: subprocess.Popen[bytes], token: str) -> None:
    """Kill the process group, then whatever still carries the token."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for other in psutil.process_iter(["pid"]):
        try:
            if other.pid != os.getpid() and other.environ().get(TOKEN) == token:
                other.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


@functools.cache
def find_mpirun() -> str:
    """The mpirun next to this Python, which mpi4py was built for, else the one on the path."""
    own = Path(sys.executable).with_name("mpirun")
    found = str(own) if own.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun next to this Python or on the path; `make setup` installs one")
    return found


@functools.cache
def _binding(program: str) -> tuple[str, ...]:
    """Open MPI binds two ranks to one core each, with all their threads; MPICH binds none."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30)
    return ("--bind-to", "none") if "HYDRA" not in done.stdout.upper() else ()


def tail(text: str, num_lines: int = 60) -> str:
    """The last lines, where the reason usually is."""
    return "\n".join(text.splitlines()[-num_lines:])
