"""Every second of a step belongs to one layer at most, however micro-batches alternate."""

import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

from heterps_hpc.runtime.measure.layer_timer import LayerTimes

SLOW_FORWARD = 0.05


class SlowStage:
    """One layer whose forward sleeps and whose backward takes no time."""

    layers = (SimpleNamespace(name="fc", writes=("y",)),)

    def run(self, tensors: dict[str, torch.Tensor]) -> Iterator[str]:
        time.sleep(SLOW_FORWARD)
        tensors["y"] = tensors["x"] * 2
        yield "fc"

    def backward(self, roots: Sequence[torch.Tensor], seeds: Sequence[Any]) -> None:
        torch.autograd.backward(roots, seeds)


def test_a_forward_pass_is_not_counted_to_the_backward_pass_before_it() -> None:
    stage = SlowStage()
    times = LayerTimes()
    times.watch_modules(cast(Any, stage))
    began = time.perf_counter()
    for _ in range(3):
        tensors = {"x": torch.ones(1, requires_grad=True)}
        for _ in stage.run(tensors):
            pass
        stage.backward([tensors["y"].sum()], [None])
    seconds = time.perf_counter() - began
    assert 3 * SLOW_FORWARD <= times.seconds["fc"] <= seconds
