"""What every rank is started with, by whichever launcher: its command and its environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from heterps_hpc.layout import Component

RANK_PROGRAM = "heterps_hpc.runtime"

# Left over from a job or a rank that we were started inside of; mpirun or sbatch would obey them
# (hydra would call srun, a nested rank would join its parent's world).
_INHERITED = re.compile(
    r"^(SLURM_|SBATCH_|SALLOC_|SRUN_|PMI_|PMI2_|PMIX_(?!MCA_)|PRTE_(?!MCA_)|MPIEXEC_|HYDI_|"
    r"OMPI_COMM_WORLD_|OMPI_UNIVERSE_|OMPI_FILE_|OMPI_APP_)"
)
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER"}


def rank_command(
    run_dir: Path,
    component: int,
    python: str,
    prefix: tuple[str, ...] = (),
    program: str = RANK_PROGRAM,
) -> list[str]:
    """The command of one component's ranks.

    `-m mpi4py` makes an uncaught error of one rank abort the world; without it the others wait
    for ever. The component is an argument because no launcher's variable tells it reliably.
    """
    return [
        *prefix,
        python,
        "-m",
        "mpi4py",
        "-m",
        program,
        str(run_dir),
        "--component",
        str(component),
    ]


def thread_environment(component: Component) -> dict[str, str]:
    """Thread counts of a rank: as many as its cores, so that ranks of one node do not fight."""
    threads = str(component.cores_per_rank)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
    }


def with_environment(variables: Mapping[str, str], command: list[str]) -> list[str]:
    """The command under `env`: the one way to set variables that every launcher agrees on."""
    return ["env", *(f"{name}={value}" for name, value in variables.items()), *command]


def without_launchers(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment free of what an outer Slurm job or MPI rank left in it."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not _INHERITED.match(name)
    }
