"""The order of micro-batches in a dense stage: one forward, one backward.

With four micro-batches and three dense stages (F forward, B backward, time to the right):

    stage 0   F0 F1 F2 B0 F3 B1 B2 B3
    stage 1      F0 F1 B0 F2 B1 F3 B2 B3
    stage 2         F0 B0 F1 B1 F2 B2 F3 B3

A stage begins with as many forward passes as there are dense stages after it, so that at most that
many plus one micro-batches are in flight in it at once, and gradients come back as early as they
can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

Tick = tuple[Literal["forward", "backward"], int]


def one_forward_one_backward(num_micro_batches: int, num_later_stages: int) -> Iterator[Tick]:
    """All ticks of one batch in a stage with that many dense stages after it."""
    warmup = min(num_micro_batches, num_later_stages)
    for micro_batch in range(warmup):
        yield "forward", micro_batch
    for micro_batch in range(warmup, num_micro_batches):
        yield "forward", micro_batch
        yield "backward", micro_batch - warmup
    for micro_batch in range(num_micro_batches - warmup, num_micro_batches):
        yield "backward", micro_batch
