"""What every rank is started with, by whichever launcher: its command and a clean environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from heterps_hpc.layout import Component

RANK_PROGRAM = "heterps_hpc.runtime"
ENV = "/usr/bin/env"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# Left over from a job or a rank that we were started inside of; mpirun or sbatch would obey them
# (hydra would call srun, a nested rank would join its parent's world).
_INHERITED = re.compile(
    r"^(SLURM_|SBATCH_|SALLOC_|SRUN_|PMI_|PMI2_|PMIX_(?!MCA_)|PRTE_(?!MCA_)|MPIEXEC_|HYDI_|"
    r"OMPI_COMM_WORLD_|OMPI_UNIVERSE_|OMPI_FILE_|OMPI_APP_)"
)
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER"}


def rank_command(
    run_dir: Path,
    number: int,
    component: Component,
    python: str,
    prefix: tuple[str, ...] = (),
    program: str = RANK_PROGRAM,
) -> list[str]:
    """The command of one component's ranks.

    `-m mpi4py` makes an uncaught error of one rank abort the world; without it the others wait
    forever. The component is an argument because no launcher's variable gives it reliably. Threads
    are as many as the rank has cores, so that ranks of one node do not fight; they are set by
    `env`, the one way that every launcher agrees on: by its full path, since PATH may lack it.
    `-P`: a `random.py` or `profile.py` of the user's in the working directory is not ours.
    """
    other = [] if program == RANK_PROGRAM else ["--program", program]
    return [
        ENV,
        *(f"{name}={component.cores_per_rank}" for name in _THREAD_VARIABLES),
        *prefix,
        *(python, "-P", "-m", "mpi4py", "-m", RANK_PROGRAM),
        *(str(run_dir), "--component", str(number)),
        *other,
    ]


def without_launchers(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment free of what an outer Slurm job or MPI rank left in it."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not _INHERITED.match(name)
    }
