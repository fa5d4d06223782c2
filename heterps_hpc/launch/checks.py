"""The checks of `heterps doctor`: each says what it found, whether that will do, and the remedy.

A check that decides about local runs is asked under a real mpirun, because that is where a wrong
pairing of MPI and launcher shows itself.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from heterps_hpc.errors import UserError
from heterps_hpc.launch.mpi import Mpi, find_mpi
from heterps_hpc.launch.mpi_env import mpi_environment
from heterps_hpc.launch.rank_command import without_launchers

_PROBE_LIMIT_SECONDS = 120.0
_SETUP = "run `make setup` again"

Facts = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    found: str
    ok: bool
    remedy: str = ""
    local: bool = False  # without it, no local run
    slurm: bool = False  # without it, no run by Slurm


def probe_ranks(mpi: Mpi, num_ranks: int = 2) -> list[Facts]:
    """What ranks find under a real mpirun; empty if they did not come up."""
    command: list[str] = [str(mpi.mpirun)]
    if mpi.flavour == "mpich":
        command += ["-launcher", "fork"]
    else:
        command += ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
    program = [sys.executable, "-m", "mpi4py", "-m", "heterps_hpc.runtime.measure.probe"]
    variables = {**mpi_environment(mpi.flavour, "local"), **without_launchers(os.environ)}
    try:
        done = subprocess.run(
            [*command, "-n", str(num_ranks), *program],
            env={**variables, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=_PROBE_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def local_checks() -> list[Check]:
    """Everything that a run on this machine needs."""
    return [_python(), *_ranks(), _compiler()]


def _python() -> Check:
    version = platform.python_version()
    ok = sys.version_info >= (3, 11)
    return Check("Python", version, ok, "use Python 3.11 or later", local=True, slurm=True)


def _ranks() -> list[Check]:
    try:
        mpi = find_mpi()
    except UserError as error:
        return [Check("mpirun", "none", False, str(error), local=True)]
    facts = probe_ranks(mpi)
    launcher = Check("mpirun", f"{mpi.flavour} {mpi.version}, {mpi.mpirun}", True, local=True)
    if not facts:
        probe = "-m mpi4py -m heterps_hpc.runtime.measure.probe"
        remedy = f"try `{mpi.mpirun} -n 2 {sys.executable} {probe}`"
        return [launcher, Check("ranks", "did not start", False, remedy, local=True, slurm=True)]
    return [launcher, *rank_checks(facts, 2)]


def rank_checks(facts: list[Facts], num_ranks: int) -> list[Check]:
    """What the ranks of a probe told."""
    one = facts[0]
    return [
        _world(facts, num_ranks),
        _threads(one),
        _part(one, "torch", _torch_text(one)),
        _horovod(one),
        _part(one, "hdf5", f"HDF5 {one.get('hdf5')}, h5py {one.get('h5py')}, compression plugins"),
        _part(one, "core", f"C++ tables, instruction set {one.get('core_isa')}"),
    ]


def _world(facts: list[Facts], num_ranks: int) -> Check:
    sizes = sorted({int(fact.get("mpi_size", 0)) for fact in facts})
    whole = num_ranks * (num_ranks + 1) // 2
    ok = sizes == [num_ranks] and all(fact.get("mpi_sum") == whole for fact in facts)
    library = facts[0].get("mpi_library") or facts[0].get("error_mpi") or "no MPI library"
    if ok:
        return Check("MPI world", f"one world of {num_ranks}; {library}", True, local=True)
    found = (
        f"worlds of {', '.join(map(str, sizes))} where {num_ranks} ranks were started; {library}"
    )
    remedy = "mpirun and mpi4py belong to different MPIs; " + _SETUP
    return Check("MPI world", found, False, remedy, local=True, slurm=True)


def _threads(fact: Facts) -> Check:
    level = fact.get("mpi_threads", "unknown")
    remedy = "Horovod needs MPI_THREAD_MULTIPLE; use an MPI built with threads"
    return Check("MPI threads", str(level), level == "multiple", remedy, local=True, slurm=True)


def _torch_text(fact: Facts) -> str:
    return f"torch {fact.get('torch')}, {fact.get('devices', 'no accelerator')} here"


def _horovod(fact: Facts) -> Check:
    """Also says which reducer a stage of several ranks would get.

    Where it cannot be imported, runs do without it. One that fails later, or was built without MPI,
    they would choose.
    """
    error = str(fact.get("error_horovod") or "")
    works = bool(fact.get("horovod_mpi"))
    missing = error.startswith(("ImportError", "ModuleNotFoundError"))
    if missing:
        text = f"{error}; gradients are summed by MPI_Allreduce"
    else:
        reducer = "Horovod" if works else "MPI_Allreduce if you set `train.reducer: mpi`"
        parts = f"{fact.get('horovod')} with {fact.get('horovod_parts') or 'nothing'}"
        text = f"{error or parts}; gradients are summed by {reducer}"
    remedy = f"it must be built with MPI; {_SETUP}"
    return Check("Horovod", text, works, remedy, local=not missing, slurm=not missing)


def _part(fact: Facts, name: str, found: str) -> Check:
    error = fact.get(f"error_{name}")
    return Check(name, error or found, error is None, _SETUP, local=True, slurm=True)


def _compiler() -> Check:
    path = shutil.which("c++") or shutil.which("g++")
    remedy = "only needed to build: install a C++20 compiler"
    if path is None:
        return Check("compiler", "none", False, remedy)
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Check("compiler", answer.stdout.splitlines()[0] if answer.stdout else path, True)
