"""A rank of the smoke test: says who it is in which world, and sums within its component."""

import os
import sys

from heterps_hpc.runtime.pmi_relay import relay_pmi

relay_pmi(os.environ)  # as every rank does, before MPI starts

from mpi4py import MPI  # noqa: E402

world = MPI.COMM_WORLD
component = int(sys.argv[1])
mine = world.Split(component, world.rank)
print(
    f"rank={world.rank} of={world.size} component={component} "
    f"node={os.environ['SLURMD_NODENAME']} host={MPI.Get_processor_name()} "
    f"sum={mine.allreduce(world.rank)} all={world.allreduce(world.rank)}",
    flush=True,
)
