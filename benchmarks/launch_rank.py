"""The least that a rank can do: start MPI, meet the others, leave."""

from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
