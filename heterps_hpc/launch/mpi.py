"""Which MPI is at hand: its flavour decides the words of mpirun and the plugin of srun."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heterps_hpc.errors import UserError

Flavour = Literal["mpich", "openmpi"]

_INSTALL = "install one (`make setup`), load your site's MPI module, or put its mpirun on PATH"


@dataclass(frozen=True)
class Mpi:
    """An MPI installation as its launcher presents it."""

    flavour: Flavour
    mpirun: Path
    version: str


def flavour_of(version_text: str) -> tuple[Flavour, str] | None:
    """Flavour and version from what `mpirun --version` prints; None if it is neither."""
    number = re.search(r"\d+\.\d+(?:\.\d+)*", version_text)
    version = number.group(0) if number else "unknown"
    if "HYDRA" in version_text or "Intel(R) MPI" in version_text:
        return "mpich", version
    if re.search(r"Open MPI|Open-?RTE|PRRTE|prterun", version_text, re.IGNORECASE):
        return "openmpi", version
    return None


def find_mpi(python: Path | None = None) -> Mpi:
    """The MPI beside the interpreter, else the one on PATH."""
    beside = (python or Path(sys.executable)).parent / "mpirun"
    on_path = shutil.which("mpirun") or shutil.which("mpiexec")
    mpirun = beside if beside.exists() else Path(on_path) if on_path else None
    if mpirun is None:
        raise UserError(f"no mpirun beside {sys.executable} or on PATH; {_INSTALL}")
    try:
        answer = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{mpirun}: cannot be run ({error}); {_INSTALL}") from None
    found = flavour_of(answer.stdout + answer.stderr)
    if found is None:
        words = " ".join((answer.stdout + answer.stderr).split())[:120]
        raise UserError(
            f"{mpirun}: neither MPICH nor Open MPI (it says {words!r}); use one of those two"
        )
    return Mpi(flavour=found[0], mpirun=mpirun, version=found[1])
