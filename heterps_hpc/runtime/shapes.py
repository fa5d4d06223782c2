"""Shapes of all tensors of a model, found by running it once on torch's `meta` device.

No memory is allocated and no arithmetic done, so every rank can afford to know the whole model.
A module that cannot run there (its forward looks at values) runs on a few rows of zeros instead.
"""

from __future__ import annotations

import torch

from heterps_hpc.errors import UserError
from heterps_hpc.model import LENGTH_PREFIX, LOSS, SCORE, Layer, Model
from heterps_hpc.models.layers import new_module
from heterps_hpc.runtime.exchange.routes import embedding_widths

_ROWS = 3  # any number that is unlikely to be a model's own constant


def tensor_shapes(model: Model, num_dense: int) -> dict[str, tuple[int, ...]]:
    """The shape of one sample's part of every tensor."""
    shapes: dict[str, tuple[int, ...]] = {"dense": (num_dense,), "label": (), "weight": ()}
    shapes |= {name: (width,) for name, width in embedding_widths(model).items()}
    for layer in model.layers:
        if layer.make is None:
            continue
        inputs = [() if name.startswith(LENGTH_PREFIX) else shapes[name] for name in layer.reads]
        for name, shape in zip(layer.writes, _output_shapes(layer, inputs), strict=True):
            _check(layer, name, shape)
            shapes[name] = shape[1:]
    return shapes


def _output_shapes(layer: Layer, inputs: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    try:
        return _run_on("meta", layer, inputs)
    except (RuntimeError, NotImplementedError):
        return _run_on("cpu", layer, inputs)


def _run_on(device: str, layer: Layer, inputs: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    with torch.device(device), torch.no_grad(), torch.random.fork_rng(devices=[]):
        module = new_module(layer)
        module.eval()  # no dropout: it wants to know which samples these are
        outputs = module(*[torch.zeros(_ROWS, *shape) for shape in inputs])
    return [tuple(value.shape) for value in as_tuple(outputs)]


def _check(layer: Layer, name: str, shape: tuple[int, ...]) -> None:
    if len(shape) < 1 or shape[0] != _ROWS:
        raise UserError(
            f"layer {layer.name!r} writes {name!r} of shape {shape} for {_ROWS} samples; "
            "a tensor needs one row per sample"
        )
    if name in (LOSS, SCORE) and len(shape) != 1:
        raise UserError(
            f"layer {layer.name!r} writes {name!r} of shape {shape}; it must be one number per "
            "sample, shape (rows,): do not average, the runtime does"
        )


def as_tuple(value: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """A module's output as a tuple."""
    return value if isinstance(value, tuple) else (value,)
