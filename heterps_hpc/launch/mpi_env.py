"""Environment variables that make each MPI behave, here and under Slurm.

The ranks of a job often share cores with each other and with Horovod's background thread,
which polls. Both MPIs spin by default while they wait; told to yield, they leave the core to
whoever has work. benchmarks/mpi_choice.py measures what each setting is worth.
"""

from __future__ import annotations

from typing import Literal

# Open MPI refuses to start as root unless told twice; containers and test machines are root.
_OPENMPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpi_environment(
    flavour: Literal["mpich", "openmpi"], under: Literal["local", "slurm"]
) -> dict[str, str]:
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
