"""The dense layers that lead to the score, as one torch module without losses or labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps_hpc.errors import UserError
from heterps_hpc.model import SCORE, Layer, Model, is_data_tensor
from heterps_hpc.models.layers import make_module

Weights = Mapping[str, NDArray[np.floating]]


def score_layers(model: Model) -> tuple[Layer, ...]:
    """The layers that the score depends on, in order; the loss is not one of them."""
    wanted = {SCORE}
    chosen: list[Layer] = []
    for layer in reversed(model.layers):
        if wanted.intersection(layer.writes):
            chosen.append(layer)
            wanted.update(layer.reads)
    layers = tuple(reversed(chosen))
    needy = [layer.name for layer in layers if {"label", "weight"}.intersection(layer.reads)]
    if needy:
        raise UserError(
            f"model {model.name!r}: layer {needy[0]!r} needs the label for the score, so rows "
            "without one cannot be scored; let only the loss read it"
        )
    return layers


class ScoreModule(nn.Module):
    """Inputs by name in the order of `reads`, one score per sample out."""

    def __init__(self, model: Model, weights: Weights, dtype: torch.dtype) -> None:
        super().__init__()
        layers = score_layers(model)
        self.layers = tuple(layer for layer in layers if not layer.is_embedding)
        embedded = [name for layer in layers if layer.is_embedding for name in layer.writes]
        read = dict.fromkeys(name for layer in self.layers for name in layer.reads)
        self.reads = tuple(name for name in read if name in embedded or is_data_tensor(name))
        self.parts = nn.ModuleList(make_module(layer, 0, dtype) for layer in self.layers)
        self._load(weights)
        self.eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        """[rows]"""
        tensors = dict(zip(self.reads, inputs, strict=True))
        for layer, part in zip(self.layers, self.parts, strict=True):
            outputs = part(*(tensors[name] for name in layer.reads))
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            tensors.update(zip(layer.writes, outputs, strict=True))
        return tensors[SCORE]

    def _load(self, weights: Weights) -> None:
        with torch.no_grad():
            for layer, part in zip(self.layers, self.parts, strict=True):
                for name, parameter in part.named_parameters():
                    value = weights.get(f"{layer.name}.{name}")
                    if value is None or value.shape != tuple(parameter.shape):
                        got = "none" if value is None else f"shape {value.shape}"
                        raise UserError(
                            f"parameter {layer.name}.{name}: the checkpoint has {got}, the model "
                            f"wants shape {tuple(parameter.shape)}; the model file has changed"
                        )
                    parameter.copy_(torch.from_numpy(value))
