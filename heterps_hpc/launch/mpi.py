"""Which MPI is at hand, what it needs in its environment, and which plugin of srun it needs.

The ranks of a job often share cores with each other and with Horovod's background thread,
which polls. Both MPIs spin by default while they wait; set to yield, they leave the core to
others that have work. benchmarks/mpi_choice.py measures what each setting is worth.
"""

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

# Open MPI refuses to start as root unless asked twice; containers and test machines are root.
_OPENMPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


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
    """The MPI next to the interpreter, else the one on PATH."""
    own = (python or Path(sys.executable)).parent / "mpirun"
    on_path = shutil.which("mpirun") or shutil.which("mpiexec")
    mpirun = own if own.exists() else Path(on_path) if on_path else None
    if mpirun is None:
        raise UserError(f"no mpirun next to {sys.executable} or on PATH; {_INSTALL}")
    try:
        answer = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{mpirun}: cannot be run ({error}); {_INSTALL}") from None
    found = flavour_of(answer.stdout + answer.stderr)
    if found is None:
        printed = " ".join((answer.stdout + answer.stderr).split())[:120]
        raise UserError(
            f"{mpirun}: neither MPICH nor Open MPI (it prints {printed!r}); use one of those two"
        )
    return Mpi(flavour=found[0], mpirun=mpirun, version=found[1])


def flavour_of_ranks(python: str | None, srun_mpi: str | None) -> Flavour:
    """The MPI that ranks on other machines use: the one next to their `python`, else the one here.

    Where none is in sight, as on a login node without MPI, the plugin of srun tells; else it is
    MPICH, as in the environment that `make setup` builds.
    """
    try:
        return find_mpi(None if python is None else Path(python)).flavour
    except UserError:
        return "openmpi" if (srun_mpi or "").startswith("pmix") else "mpich"


def mpi_environment(flavour: Flavour, under: Literal["local", "slurm"]) -> dict[str, str]:
    """What to set for the ranks, and for mpirun, before MPI starts.

    MPICH, everywhere:

    - ``MPIR_CVAR_POLLS_BEFORE_YIELD=1``: yield the core after each fruitless poll instead of
      after a thousand.

    Open MPI, everywhere:

    - ``OMPI_MCA_mpi_yield_when_idle=1``: the same; without it Horovod's idle thread burns a core.
    - ``OMPI_MCA_pml=ob1``: the plain message layer; probing for fast networks costs a second at
      start-up. A site with such a network sets its own value, which wins.
    - ``OMPI_ALLOW_RUN_AS_ROOT`` and ``…_CONFIRM``: it does not start as root otherwise.

    Open MPI locally: ``OMPI_MCA_btl=self,sm,tcp`` (shared memory), and
    ``PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe`` (whether there may be more ranks than
    cores is decided, with a better message, before mpirun is called).

    Open MPI under Slurm: ``OMPI_MCA_btl=tcp,self``: with shared memory some starts were seen to
    hang when several nodes are on one host.
    """
    if flavour == "mpich":
        return {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
    common = {
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_pml": "ob1",
        **_OPENMPI_AS_ROOT,
    }
    if under == "slurm":
        return {**common, "OMPI_MCA_btl": "tcp,self"}
    return {
        **common,
        "OMPI_MCA_btl": "self,sm,tcp",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
