"""Fully connected layers one after another, as most models have; torch only when made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from heterps_hpc.model import LOSS, SCORE, Layer, dense


class Stack(NamedTuple):
    """Layers, and the tensor that comes out of them."""

    layers: tuple[Layer, ...]
    writes: str
    width: int


def fc(
    name: str,
    reads: str,
    writes: str,
    in_width: int,
    out_width: int,
    dropout: float = 0.0,
    relu: bool = True,
) -> Layer:
    """One fully connected layer over what it reads side by side."""

    def make() -> Any:
        from heterps_hpc.models.layers import Fc

        return Fc(in_width, out_width, relu, dropout)

    return dense(name, make, reads, writes)


def hidden_layers(
    prefix: str, reads: str, in_width: int, widths: Sequence[int], dropout: float = 0.0
) -> Stack:
    """Layers with ReLU, each a layer of its own: fc1, fc2 … for prefix `fc`."""
    layers = []
    for number, width in enumerate(widths, start=1):
        name = f"{prefix}{number}"
        layers.append(fc(name, reads, name, in_width, width, dropout))
        reads, in_width = name, width
    return Stack(tuple(layers), reads, in_width)


def logit(name: str, below: Stack) -> Layer:
    """The last fully connected layer: one click logit per sample."""

    def make() -> Any:
        from heterps_hpc.models.layers import Logit

        return Logit(below.width)

    return dense(name, make, below.writes, SCORE)


def bce_loss() -> Layer:
    """Cross entropy of the click logit against the first label."""

    def make() -> Any:
        from heterps_hpc.models.layers import BceLoss

        return BceLoss()

    return dense("loss", make, f"{SCORE} label", LOSS, kind="loss")
