"""A stage's flat buffers hold parameters of any kind, and treat them as torch's optimizers do."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from heterps_hpc.config import Job
from heterps_hpc.model import Model, dense
from heterps_hpc.models.layers import make_module
from heterps_hpc.runtime.stage import StageModules

OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adagrad": partial(torch.optim.Adagrad, eps=1e-8),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


class Odd(nn.Module):
    """A parameter that is not contiguous, and one that must not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.transposed = nn.Parameter(torch.randn(3, 4).t())
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)

    def forward(self, values: Tensor) -> Tensor:
        return (values @ self.transposed.t() * self.frozen).sum(dim=1)


LAYER = dense("odd", Odd, "dense", "score")


def odd_stage(optimizer: str) -> StageModules:
    spec = {"optimizer": optimizer, "lr": 0.1, "weight_decay": 0.5}
    job = Job.parse(
        {
            "name": "odd",
            "model": {"name": "ctrdnn"},
            "data": {"train": "none"},
            "train": {"batch_size": 2, "seed": 3, "dense": spec},
        },
        "odd",
    )
    model = cast(Model, SimpleNamespace(layer=lambda name: LAYER))
    return StageModules(model, ("odd",), job, torch.device("cpu"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_odd_parameters_learn_as_under_torch(optimizer: str) -> None:
    stage = odd_stage(optimizer)
    plain = make_module(LAYER, seed=3)
    theirs = OPTIMIZERS[optimizer](plain.parameters(), lr=0.1, weight_decay=0.5)
    for number in range(3):
        values = torch.full((2, 3), 0.5 + number)
        theirs.zero_grad()
        plain(values).square().sum().backward()
        theirs.step()
        stage.clear_gradients()
        stage.backward([stage.modules["odd"](values).square().sum()], [None], is_last=True)
        stage.apply(0.1, None)
    ours = dict(stage.named_parameters())
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(ours[f"odd.{name}"], parameter)


def test_gradients_are_announced_of_the_parameters_that_have_some() -> None:
    stage = odd_stage("sgd")
    complete: list[tuple[int, int]] = []
    stage.on_complete(lambda flat, first, last: complete.append((first, last)))
    for is_last in (False, True):
        loss = stage.modules["odd"](torch.ones(2, 3)).sum()
        stage.backward([loss], [None], is_last=is_last)
    first, shape = stage.named_slices()["odd.transposed"]
    assert complete == [(first, first + shape.numel())]
