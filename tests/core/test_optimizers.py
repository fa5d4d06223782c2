"""Every optimizer against torch.optim on the same gradients, one dense parameter per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from heterps_hpc.core import Table, TableConfig

LR, EPS = 0.05, 1e-6


def torch_optimizer(name: str, row: torch.nn.Parameter, **options: Any) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD([row], lr=LR, **options)
    if name == "adagrad":
        return torch.optim.Adagrad([row], lr=LR, eps=EPS, initial_accumulator_value=0.1, **options)
    return torch.optim.Adam([row], lr=LR, eps=EPS, betas=(0.8, 0.95), **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [1, 4, 7, 16, 64, 100])
@pytest.mark.parametrize("weight_decay", [0.0, 0.02])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_matches_torch(optimizer: Any, weight_decay: float, dim: int, dtype: Any) -> None:
    config = TableConfig(
        dim=dim,
        optimizer=optimizer,
        lr=LR,
        eps=EPS,
        beta1=0.8,
        beta2=0.95,
        dtype=dtype,
        weight_decay=weight_decay,
        initial_accumulator=0.1,
    )
    table = Table(config)
    keys = np.array([5, 9, 5, 2**64 - 1], np.uint64)  # 5 twice: merged before the update
    rng = np.random.default_rng(dim)
    out = np.empty((len(keys), dim), dtype)
    rows: dict[int, torch.nn.Parameter] = {}
    optimizers: dict[int, torch.optim.Optimizer] = {}
    for step in range(12):
        batch = keys if step % 3 else keys[:3]  # the last row is updated lazily, at its own steps
        handle = table.pull(batch, out=out[: len(batch)])
        assert handle is not None
        for i, key in enumerate(batch.tolist()):
            if key not in rows:
                rows[key] = torch.nn.Parameter(torch.tensor(out[i].copy()))
                optimizers[key] = torch_optimizer(optimizer, rows[key], weight_decay=weight_decay)
        gradient = rng.standard_normal((len(batch), dim)).astype(dtype)
        for key in set(batch.tolist()):
            rows[key].grad = torch.tensor(gradient[batch == key].sum(0))
            optimizers[key].step()
        table.push([handle], [gradient], step=step)
    found, vectors, _ = table.read(keys)
    assert found.all()
    for i, key in enumerate(keys.tolist()):
        expected = rows[key].detach().numpy()
        close = 2e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(vectors[i], expected, rtol=close, atol=close / 10)


def test_rowwise_adagrad_by_hand() -> None:
    table = Table(TableConfig(dim=2, lr=1.0, eps=0.0, init="zeros", dtype="float64"))
    out = np.empty((1, 2))
    for step in range(2):
        handle = table.pull(np.array([1], np.uint64), out=out)
        assert handle is not None
        table.push([handle], [np.array([[3.0, 4.0]])], step=step)
    _, vectors, state = table.read(np.array([1], np.uint64))
    assert state[0, 0] == 25.0  # the mean of the squares, twice
    np.testing.assert_allclose(vectors[0], -np.array([3.0, 4.0]) * (1 / np.sqrt(12.5) + 1 / 5))


def test_learning_rate_of_a_push_wins() -> None:
    table = Table(TableConfig(dim=1, optimizer="sgd", lr=1.0, init="zeros", dtype="float64"))
    handle = table.pull(np.array([1], np.uint64), out=np.empty((1, 1)))
    assert handle is not None
    table.push([handle], [np.ones((1, 1))], step=0, lr=0.25)
    assert table.read(np.array([1], np.uint64))[1][0, 0] == -0.25
