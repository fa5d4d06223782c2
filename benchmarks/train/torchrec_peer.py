"""TorchRec: sharded embedding bags with fused row-wise Adagrad, DDP for the dense layers, gloo.

python -m torch.distributed.run --nproc-per-node 2 torchrec_peer.py WORKLOAD_JSON DATA
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torchrec
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.train.limit import make_mlp
from benchmarks.train.workload import StepClock, Workload, open_reader
from heterps_hpc.dataset import Batch


class TorchRecNet(nn.Module):
    """An embedding bag collection, then the dense layers."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.bags = torchrec.EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=f"t_{name}",
                    embedding_dim=work.dim,
                    num_embeddings=work.cardinality,
                    feature_names=[name],
                )
                for name in work.slots
            ],
        )
        self.mlp = make_mlp(work)

    def forward(self, keys: KeyedJaggedTensor, dense: torch.Tensor | None) -> torch.Tensor:
        """Logits."""
        pooled = self.bags(keys).values()
        inputs = pooled if dense is None else torch.cat([pooled, dense], dim=1)
        logits: torch.Tensor = self.mlp(inputs)[:, 0]
        return logits


def to_keys(work: Workload, batch: Batch) -> KeyedJaggedTensor:
    """All slots of a batch, as TorchRec wants them."""
    values = np.concatenate([batch.slots[name].keys for name in work.slots]).view(np.int64)
    lengths = np.full(len(batch.sample_ids) * work.num_slots, work.keys_per_slot, dtype=np.int64)
    return KeyedJaggedTensor(
        keys=list(work.slots), values=torch.from_numpy(values), lengths=torch.from_numpy(lengths)
    )


def main() -> None:
    """Train and print the rate of all ranks, on rank 0."""
    work = Workload.from_json(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    net = TorchRecNet(work)
    _apply_optimizer_in_backward(
        torchrec.optim.RowWiseAdagrad, net.bags.parameters(), {"lr": work.sparse_lr}
    )
    sharder = EmbeddingBagCollectionSharder()
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=size, compute_device="cpu", local_world_size=size)
    )
    plan = planner.collective_plan(net, [sharder], dist.group.WORLD)
    model = DistributedModelParallel(net, device=device, plan=plan, sharders=[sharder])
    dense_parameters = [p for n, p in model.named_parameters() if "mlp" in n]
    optimizer = torch.optim.Adagrad(dense_parameters, lr=work.dense_lr, fused=True)
    reader = open_reader(work, Path(sys.argv[2]), rank, size)
    clock = StepClock(work, work.batch_size)
    for step in range(work.num_steps):
        if clock.turns(step):
            dist.barrier()
        clock.before(step)
        batch = next(reader)
        labels = torch.from_numpy(batch.labels[:, 0])
        dense = None if batch.dense is None else torch.from_numpy(batch.dense)
        optimizer.zero_grad()
        logits = model(to_keys(work, batch), dense)
        nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        optimizer.step()
    dist.barrier()
    clock.before(work.num_steps)
    reader.close()
    if rank == 0:
        print(json.dumps(clock.rates))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
