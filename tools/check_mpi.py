"""Four ranks, Horovod on a communicator of two: what every training run stands on."""

from mpi4py import MPI  # first: mpi4py must be the one that starts MPI

world = MPI.COMM_WORLD
assert world.size == 4, f"mpirun started {world.size} ranks in this world instead of 4"
assert MPI.Query_thread() == MPI.THREAD_MULTIPLE, "MPI lacks MPI_THREAD_MULTIPLE"
half = world.Split(world.rank // 2, world.rank)
if world.rank >= 2:
    import horovod.torch as hvd
    import torch

    hvd.init(comm=half)
    mean = hvd.allreduce(torch.arange(4.0) * (hvd.rank() + 1), op=hvd.Average)
    assert torch.equal(mean, torch.arange(4.0) * 1.5), mean
    hvd.shutdown()
world.Barrier()
if world.rank == 0:
    print("ok:", MPI.Get_library_version().splitlines()[0])
