"""The least that a rank can do: start MPI, meet the others, say so in a file, leave."""

import sys
from pathlib import Path

from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    (Path(sys.argv[1]) / "met").touch()
