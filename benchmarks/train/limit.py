"""The limit on a workload: processes at once that only train the dense layers, no tables at all.

The gradient of the input is computed too: a model with embeddings cannot do without it.

    python -m benchmarks.train.limit WORKLOAD_JSON DATA NUM_PROCESSES PROCESS
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn

from benchmarks.train.workload import Workload


def make_mlp(work: Workload) -> nn.Sequential:
    """The dense layers."""
    layers: list[nn.Module] = []
    width = work.input_width
    for out in work.hidden:
        layers += [nn.Linear(width, out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, nn.Linear(width, 1))


def main() -> None:
    """Train on random input and print the rate of this process, which has no rows to grow."""
    work = Workload.from_json(sys.argv[1])
    rows = work.batch_size // int(sys.argv[3])
    torch.set_num_threads(1)
    model = make_mlp(work)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=work.dense_lr, fused=True)
    inputs = torch.randn(rows, work.input_width, requires_grad=True)
    labels = torch.rand(rows).round()
    started = 0.0
    for step in range(work.warmup_steps + work.timed_steps):
        if step == work.warmup_steps:
            started = time.perf_counter()
        optimizer.zero_grad()
        inputs.grad = None
        loss = nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels)
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - started
    print(json.dumps({"settled": rows * work.timed_steps / seconds}))


if __name__ == "__main__":
    main()
