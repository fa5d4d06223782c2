"""One rank of the MPI comparison: a loop with the shape of training, and its rate.

Rank r of n: the lower half gathers rows and applies gradients (sparse), the upper half
multiplies matrices and sums its gradients by Horovod over its own communicator (dense).
With two ranks each is both. Each step moves 1 MB each way between every sparse and dense
rank, and reduces one flat buffer of 1.5 MB. Prints one JSON line on rank 0.
"""

import itertools
import json
import sys
import time

from mpi4py import MPI  # first: mpi4py must be the one that starts MPI

# isort: split
import horovod.torch as hvd
import numpy as np
import torch

WIRE_FLOATS = 1_000_000 // 4
FLAT_FLOATS = 1_500_000 // 4
TABLE_ROWS, DIM = 200_000, 16
STEPS_PER_LOOK = 5  # between looks at the clock, which all ranks must agree on


class Dense:
    """Matrix work of a small click-through network, and its flat gradient."""

    def __init__(self) -> None:
        sizes = [416, 512, 256, 128, 1]
        self.weights = [torch.randn(a, b) * 0.01 for a, b in itertools.pairwise(sizes)]
        self.flat = torch.zeros(FLAT_FLOATS)
        self.batch = torch.randn(1024, 416)

    def step(self) -> None:
        activations = [self.batch]
        for weight in self.weights:
            activations.append(torch.relu(activations[-1] @ weight))
        gradient = torch.ones_like(activations[-1])
        for weight, below in zip(reversed(self.weights), reversed(activations[:-1]), strict=True):
            torch.mm(below.T, gradient)
            gradient = gradient @ weight.T
        hvd.allreduce_(self.flat, op=hvd.Sum, name="flat")


class Sparse:
    """Gather and scatter of table rows."""

    def __init__(self, rank: int) -> None:
        self.table = np.zeros((TABLE_ROWS, DIM), np.float32)
        self.keys = np.random.default_rng(rank).integers(0, TABLE_ROWS, WIRE_FLOATS // DIM)

    def gather(self, out: np.ndarray) -> None:
        np.take(self.table, self.keys, axis=0, out=out.reshape(-1, DIM))

    def apply(self, gradient: np.ndarray) -> None:
        self.table[self.keys] -= 0.01 * gradient.reshape(-1, DIM)


def main(seconds: float, warmup_steps: int) -> None:
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    ranks = range(world.size)
    sparse_ranks = list(ranks if world.size == 2 else ranks[: world.size // 2])
    dense_ranks = list(ranks if world.size == 2 else ranks[world.size // 2 :])
    is_dense, is_sparse = world.rank in dense_ranks, world.rank in sparse_ranks
    stage = world.Split(int(is_dense), world.rank)
    wire = world.Dup()
    control = world.Dup()
    if is_dense:
        hvd.init(comm=stage)
    dense, sparse = Dense(), Sparse(world.rank)
    rows_out = [np.zeros(WIRE_FLOATS, np.float32) for _ in dense_ranks]
    rows_in = [np.zeros(WIRE_FLOATS, np.float32) for _ in sparse_ranks]
    back_out = [np.zeros(WIRE_FLOATS, np.float32) for _ in sparse_ranks]
    back_in = [np.zeros(WIRE_FLOATS, np.float32) for _ in dense_ranks]

    def step() -> None:
        requests = []
        if is_dense:
            requests += [wire.Irecv(b, s, 1) for b, s in zip(rows_in, sparse_ranks, strict=True)]
        if is_sparse:
            gradients = [wire.Irecv(b, d, 2) for b, d in zip(back_in, dense_ranks, strict=True)]
            for buffer in rows_out:
                sparse.gather(buffer)
            requests += [wire.Isend(b, d, 1) for b, d in zip(rows_out, dense_ranks, strict=True)]
        MPI.Request.Waitall(requests)
        if is_dense:
            dense.step()
            sends = [wire.Isend(b, s, 2) for b, s in zip(back_out, sparse_ranks, strict=True)]
        if is_sparse:
            MPI.Request.Waitall(gradients)
            for buffer in back_in:
                sparse.apply(buffer)
        if is_dense:
            MPI.Request.Waitall(sends)

    for _ in range(warmup_steps):
        step()
    control.Barrier()
    began, steps, stop = time.perf_counter(), 0, False
    while not stop:
        for _ in range(STEPS_PER_LOOK):
            step()
        steps += STEPS_PER_LOOK
        stop = control.bcast(time.perf_counter() - began > seconds, root=0)
    rate = steps / (time.perf_counter() - began)
    control.Barrier()
    if is_dense:
        hvd.shutdown()
    if world.rank == 0:
        library = MPI.Get_library_version().splitlines()[0].strip()
        print(json.dumps({"steps_per_second": rate, "ranks": world.size, "library": library}))


main(float(sys.argv[1]), int(sys.argv[2]))
