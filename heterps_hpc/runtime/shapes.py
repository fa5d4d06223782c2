"""Shapes of all tensors of a model, found by running it once on torch's `meta` device.

No memory is allocated and no arithmetic done, so every rank can afford to know the whole model.
"""

from __future__ import annotations

import torch

from heterps_hpc.errors import UserError
from heterps_hpc.model import LENGTH_PREFIX, LOSS, SCORE, Model
from heterps_hpc.runtime.wiring import embedding_widths

_ROWS = 3  # any number that is unlikely to be a model's own constant


def tensor_shapes(model: Model, num_dense: int) -> dict[str, tuple[int, ...]]:
    """The shape of one sample's part of every tensor."""
    tensors = {
        "dense": torch.empty(_ROWS, num_dense, device="meta"),
        "label": torch.empty(_ROWS, device="meta"),
        "weight": torch.empty(_ROWS, device="meta"),
    }
    for name, width in embedding_widths(model).items():
        tensors[name] = torch.empty(_ROWS, width, device="meta")
    for layer in model.layers:
        if layer.make is None:
            continue
        with torch.device("meta"):
            module = layer.make()
        inputs = [
            torch.empty(_ROWS, device="meta") if name.startswith(LENGTH_PREFIX) else tensors[name]
            for name in layer.reads
        ]
        for name, value in zip(layer.writes, as_tuple(module(*inputs)), strict=True):
            if value.ndim < 1 or value.shape[0] != _ROWS:
                raise UserError(
                    f"layer {layer.name!r} writes {name!r} of shape {tuple(value.shape)} for "
                    f"{_ROWS} samples; a tensor needs one row per sample"
                )
            if name in (LOSS, SCORE) and value.ndim != 1:
                raise UserError(
                    f"layer {layer.name!r} writes {name!r} of shape {tuple(value.shape)}; it must "
                    "be one number per sample, shape (rows,): do not average, the runtime does"
                )
            tensors[name] = value
    return {name: tuple(value.shape[1:]) for name, value in tensors.items()}


def as_tuple(value: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """A module's output as a tuple."""
    return value if isinstance(value, tuple) else (value,)
