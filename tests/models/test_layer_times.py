"""Every second of a step belongs to one layer at most, however micro-batches alternate."""

import time
from typing import Any

import pytest
import torch
from torch import nn

from heterps_hpc.config import Job, MeasureSpec
from heterps_hpc.model import LOSS, SCORE, Lookup, Model, TableSpec, dense, embedding
from heterps_hpc.runtime.device import Device
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.measure.layer_timer import StepTimes
from heterps_hpc.runtime.stage import StageModules

SLOW_FORWARD = 0.05
HOST = Device(torch.device("cpu"))


class Slow(nn.Module):
    """A layer whose forward sleeps and whose backward takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> Any:
        time.sleep(SLOW_FORWARD)
        score = (x * self.weight).sum(dim=1)
        return score, score.square()


def stage() -> StageModules:
    model = Model(
        "slow",
        (
            embedding("embedding", (Lookup("user", "user", "x"),)),
            dense("fc", Slow, "x", f"{SCORE} {LOSS}"),
        ),
        (TableSpec("user", 2),),
    )
    job = Job.parse(
        {
            "name": "times",
            "model": {"name": "ctrdnn"},
            "data": {"train": "nowhere"},
            "train": {"batch_size": 4},
        },
        "job",
    )
    return StageModules(model, ("fc",), job, torch.device("cpu"))


def test_a_forward_pass_is_not_counted_to_the_backward_pass_before_it() -> None:
    modules = stage()
    times = modules.observer = StepTimes({}, PhaseTimer(), HOST, MeasureSpec(warmup=1))
    took = []
    for step in range(3):
        times.step_begins(step)
        began = time.perf_counter()
        for _ in range(3):
            tensors = {"x": torch.ones(1, 2, requires_grad=True)}
            for _ in modules.run(tensors):
                pass
            modules.backward([tensors[LOSS].sum()], [None], is_last=True)
        took.append(time.perf_counter() - began)
        times.step_ends(step)
    assert len(times.steps) == 2  # not the first: it is the warm-up
    for layers, seconds in zip(times.layers, took[1:], strict=True):
        assert 3 * SLOW_FORWARD <= layers["fc"] <= seconds


def test_means_over_typical_steps_add_up() -> None:
    """A processor that is taken away strikes now this layer, now that: no median sees it."""
    times = StepTimes({}, PhaseTimer(), HOST, MeasureSpec(warmup=1))
    times.steps = [10.0] * 8 + [1.0, 100.0]  # two outliers, which do not count
    times.layers = [{"a": 9.0, "b": 1.0} if i % 2 else {"a": 1.0, "b": 9.0} for i in range(10)]
    assert times.mean_step() == pytest.approx(10.0)
    assert times.mean_layer("a") + times.mean_layer("b") == pytest.approx(times.mean_step())
    assert times.mean_layer("a") == pytest.approx(5.0, abs=1.4)


@pytest.mark.parametrize(
    ("seconds", "is_enough"), [([0.3, 0.3], False), ([0.1] * 9, False), ([0.4] * 3, True)]
)
def test_short_batches_are_timed_for_longer(seconds: list[float], is_enough: bool) -> None:
    times = StepTimes({}, PhaseTimer(), HOST, MeasureSpec(batches=3, seconds=1.0))
    times.steps = seconds
    assert times.wants_stop() == is_enough
