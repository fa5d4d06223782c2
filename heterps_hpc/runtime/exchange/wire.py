"""How numbers travel between ranks: their type in messages, and how gradients fit into it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from heterps_hpc.config import TrainSpec

_SHORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Wire:
    """The type of rows and activations in messages."""

    dtype: torch.dtype
    # The gradient of a mean over B samples is about 1/B of a sample's own, which for common B is
    # among float16's subnormal numbers. A power of two near B loses no digit on the way.
    gradient_scale: float = 1.0


def make_wire(train: TrainSpec) -> Wire:
    """The wire of a job; `wire: float32` means that messages carry what is in memory."""
    if train.wire in _SHORT:
        scale = 2.0 ** (train.batch_size.bit_length() - 1) if train.wire == "float16" else 1.0
        return Wire(_SHORT[train.wire], scale)
    return Wire(getattr(torch, train.dtype))
