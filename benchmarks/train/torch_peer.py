"""Plain torch: EmbeddingBag with sparse gradients; alone, or with Horovod over MPI ranks.

python -m benchmarks.train.torch_peer WORKLOAD_JSON DATA THREADS [horovod]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.train.limit import make_mlp
from benchmarks.train.workload import StepClock, Workload, open_reader
from heterps_hpc.dataset import Batch


class TorchNet(nn.Module):
    """One EmbeddingBag per slot, then the dense layers."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(work.cardinality, work.dim, mode="sum", sparse=True) for _ in work.slots
        )
        self.mlp = make_mlp(work)
        self._slots = work.slots

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits."""
        parts = []
        for name, bag in zip(self._slots, self.bags, strict=True):
            keys = batch.slots[name]
            ids = torch.from_numpy(keys.keys.view(np.int64))
            offsets = torch.arange(len(ids)) if keys.offsets is None else _starts(keys.offsets)
            parts.append(bag(ids, offsets))
        if batch.dense is not None:
            parts.append(torch.from_numpy(batch.dense))
        logits: torch.Tensor = self.mlp(torch.cat(parts, dim=1))[:, 0]
        return logits


def _starts(offsets: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(offsets[:-1]))


def start_horovod() -> Any:
    """Horovod over all ranks."""
    from mpi4py import MPI

    assert MPI.Is_initialized()  # mpi4py must be the one that starts MPI
    import horovod.torch as hvd

    hvd.init(comm=MPI.COMM_WORLD)
    return hvd


def main() -> None:
    """Train and print the rates of all processes."""
    work = Workload.from_json(sys.argv[1])
    torch.set_num_threads(int(sys.argv[3]))
    rank, size, hvd = 0, 1, None
    if "horovod" in sys.argv:
        hvd = start_horovod()
        rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(0)
    model = TorchNet(work)
    sparse = torch.optim.Adagrad(model.bags.parameters(), lr=work.sparse_lr)
    dense = torch.optim.Adagrad(model.mlp.parameters(), lr=work.dense_lr)
    optimizers = [sparse, dense]
    if hvd is not None:
        optimizers = [
            hvd.DistributedOptimizer(
                optimizer, named_parameters=part.named_parameters(prefix=name), op=hvd.Average
            )
            for name, part, optimizer in (
                ("bags", model.bags, sparse),
                ("mlp", model.mlp, dense),
            )
        ]
    reader = open_reader(work, Path(sys.argv[2]), rank, size)
    clock = StepClock(work, work.batch_size)
    for step in range(work.num_steps):
        clock.before(step)
        batch = next(reader)
        labels = torch.from_numpy(batch.labels[:, 0])
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(batch), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
    clock.before(work.num_steps)
    reader.close()
    print(json.dumps(clock.rates))


if __name__ == "__main__":
    main()
