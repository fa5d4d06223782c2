"""Torch modules for models whose result must not depend on how a batch is cut.

Imported only inside `make` factories and by ranks, so that a login node can build a model without
torch. `make_module` turns a layer into a module whose first parameters no rank, layout or dtype can
change, and refuses modules that couple the samples of a batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import UninitializedParameter

from heterps_hpc.counter_rng import stream_seed
from heterps_hpc.errors import UserError
from heterps_hpc.model import Layer
from heterps_hpc.models.dropout import CounterDropout, samples

__all__ = [  # what users' own models import
    "BceLoss",
    "CosineScore",
    "CounterDropout",
    "Fc",
    "Logit",
    "NceLoss",
    "NceScore",
    "PairwiseHinge",
    "SharedFc",
    "linear_of_parts",
    "make_module",
    "refuse_batch_coupling",
    "samples",
]

_MADE_FOR = "_heterps_made_for"  # a mark on parameters


class _LinearOfParts(torch.autograd.Function):
    """A linear layer over concatenated inputs, without concatenating them in memory.

    One matrix product per part, on a slice of the weights. `cat` would copy all pooled rows once
    forward and once backward, which a wide embedding feels.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, *parts: Tensor) -> Tensor:
        """Σ part · slice of the weights + bias."""
        ctx.save_for_backward(weight, *parts)
        first = parts[0].shape[1]
        out = torch.addmm(bias, parts[0], weight[:, :first].t())
        for part in parts[1:]:
            out.addmm_(part, weight[:, first : first + part.shape[1]].t())
            first += part.shape[1]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the weights, slice by slice, and of those parts that want one."""
        weight, *parts = ctx.saved_tensors
        of_weight = torch.empty_like(weight)
        of_parts: list[Tensor | None] = []
        first = 0
        for part, wanted in zip(parts, ctx.needs_input_grad[2:], strict=True):
            columns = slice(first, first + part.shape[1])
            torch.mm(gradient.t(), part, out=of_weight[:, columns])
            of_parts.append(gradient.mm(weight[:, columns]) if wanted else None)
            first += part.shape[1]
        return of_weight, gradient.sum(dim=0), *of_parts


def linear_of_parts(linear: nn.Linear, parts: tuple[Tensor, ...]) -> Tensor:
    """A linear layer over concatenated matrices."""
    if len(parts) == 1:
        values: Tensor = linear(parts[0])
        return values
    if (
        torch.is_autocast_enabled(parts[0].device.type)
        or parts[0].is_meta
        or torch.compiler.is_exporting()  # other runtimes know no operator of ours
    ):
        joined: Tensor = linear(torch.cat(parts, dim=1))
        return joined
    product: Tensor = _LinearOfParts.apply(linear.weight, linear.bias, *parts)  # type: ignore[no-untyped-call]
    return product


class Fc(nn.Module):
    """Fully connected layer over its concatenated inputs, then ReLU and dropout if wanted."""

    def __init__(self, in_width: int, out_width: int, relu: bool = True, dropout: float = 0.0):
        super().__init__()
        self.linear = nn.Linear(in_width, out_width)
        self.relu = relu
        self.dropout = CounterDropout(dropout) if dropout else None

    def forward(self, *inputs: Tensor) -> Tensor:
        """[rows, out_width]"""
        values = linear_of_parts(self.linear, inputs)
        if self.relu:
            values = torch.relu(values)
        return values if self.dropout is None else self.dropout(values)


class Logit(nn.Module):
    """The last fully connected layer: one number per sample."""

    def __init__(self, in_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_width, 1)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[rows]"""
        return linear_of_parts(self.linear, inputs)[:, 0]


class SharedFc(nn.Module):
    """One fully connected layer for an item and, with the same weights, for its negatives."""

    def __init__(self, in_width: int, out_width: int, num_negatives: int, relu: bool = True):
        super().__init__()
        self.linear = nn.Linear(in_width, out_width)
        self.num_negatives = num_negatives
        self.relu = relu

    def forward(self, item: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """Both as matrices; the negatives of a sample lie one after another in its row."""
        num_rows = item.shape[0]
        stacked = torch.cat([item, negatives.reshape(num_rows * self.num_negatives, -1)])
        values = self.linear(stacked)
        if self.relu:
            values = torch.relu(values)
        return values[:num_rows], values[num_rows:].reshape(num_rows, -1)


class BceLoss(nn.Module):
    """Binary cross entropy of a logit against the label, per sample."""

    def forward(self, score: Tensor, label: Tensor) -> Tensor:
        """[rows]"""
        return functional.binary_cross_entropy_with_logits(
            score, label.to(score.dtype), reduction="none"
        )


class CosineScore(nn.Module):
    """Cosine of the user with the item and with each negative."""

    def __init__(self, num_negatives: int) -> None:
        super().__init__()
        self.num_negatives = num_negatives

    def forward(self, user: Tensor, item: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
        """[rows] and [rows, num_negatives]"""
        width = item.shape[1]
        others = negatives.reshape(user.shape[0], self.num_negatives, width)
        # far from the rounding of 0/0: a ReLU tower may give a sample nothing but zeros
        score = functional.cosine_similarity(user, item, dim=1, eps=1e-6)
        negative_scores = functional.cosine_similarity(user[:, None, :], others, dim=2, eps=1e-6)
        return score, negative_scores


class PairwiseHinge(nn.Module):
    """A clicked item should beat each negative by a margin; rows without a click teach nothing."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, score: Tensor, negative_scores: Tensor, label: Tensor) -> Tensor:
        """[rows]"""
        shortfall = torch.relu(self.margin - score[:, None] + negative_scores).mean(dim=1)
        return shortfall * label.to(score.dtype)


class NceScore(nn.Module):
    """Logits that a target came from the data and not from the noise: s − log(k·q)."""

    def __init__(self, dim: int, num_noise: int, log_noise_odds: float) -> None:
        super().__init__()
        self.dim = dim
        self.num_noise = num_noise
        self.log_noise_odds = log_noise_odds

    def forward(self, context: Tensor, target: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """[rows] and [rows, num_noise]; the last column of an output row is its bias."""
        outputs = torch.cat([target, noise], dim=1).reshape(context.shape[0], -1, self.dim + 1)
        products = (outputs[:, :, : self.dim] * context[:, None, :]).sum(dim=2)
        logits = products + outputs[:, :, self.dim] - self.log_noise_odds
        return logits[:, 0], logits[:, 1:]


class NceLoss(nn.Module):
    """−log σ(true logit) − Σ log σ(−noise logit), for clicked rows."""

    def forward(self, score: Tensor, noise: Tensor, label: Tensor) -> Tensor:
        """[rows]"""
        separation = functional.softplus(-score) + functional.softplus(noise).sum(dim=1)
        return separation * label.to(score.dtype)


def make_module(layer: Layer, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The layer's module, with parameters that are a function of (seed, layer name) only.

    The module's own initialisation runs (a LayerNorm starts at ones, a user's scheme is
    honoured), on a generator seeded for this layer and in float64, then cast: a float32 run
    starts from the rounded values of a float64 run.
    """
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed("initial", layer.name, seed) >> 1)
        torch.set_default_dtype(torch.float64)
        try:
            module = new_module(layer)
        finally:
            torch.set_default_dtype(default)
    refuse_batch_coupling(module, layer.name)
    for path, part in module.named_modules():
        if isinstance(part, CounterDropout):
            part.place = f"{layer.name}.{path}"
    return module.to(dtype)


def new_module(layer: Layer) -> nn.Module:
    """What a layer's `make` builds, if it is new: no seed decides the first values of parameters
    that were there before, and two layers that share some may run on different nodes."""
    if layer.make is None:
        raise ValueError(f"layer {layer.name!r} reads tables and has no module")
    module = layer.make()
    if not isinstance(module, nn.Module):
        raise UserError(
            f"layer {layer.name!r}: `make` gave a {type(module).__name__}; it must build a "
            "torch.nn.Module, e.g. `lambda: nn.Linear(8, 1)`"
        )
    for name, parameter in module.named_parameters():
        before = getattr(parameter, _MADE_FOR, None)
        if before is not None:
            raise UserError(
                f"layer {layer.name!r}: `make` gave parameter {name!r} before, for layer "
                f"{before!r}; build modules inside `make`, new ones at every call, and let layers "
                "share none"
            )
        setattr(parameter, _MADE_FOR, layer.name)
    return module


def refuse_batch_coupling(module: nn.Module, layer_name: str = "") -> None:
    """Refuse modules whose result would depend on how a batch is cut into ranks."""
    for path, part in module.named_modules():
        reason = _coupling(part)
        if reason:
            where = f"layer {layer_name!r}" + (f", module {path!r}" if path else "")
            raise UserError(f"{where}: {type(part).__name__} {reason}")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UserError(
                f"layer {layer_name!r}: parameter {name!r} has no shape yet (a Lazy module); give "
                "its input width, which is known from the tables and the schema"
            )


def _coupling(part: nn.Module) -> str | None:
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        return "mixes the samples of a batch, so its result depends on the cut; use nn.LayerNorm"
    if isinstance(part, nn.modules.instancenorm._InstanceNorm) and part.track_running_stats:
        return "keeps statistics of the batches it saw; set track_running_stats=False"
    if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
        return "draws from the rank's own generator; use heterps_hpc.models.layers.CounterDropout"
    if isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout > 0:
        return (
            f"has dropout={part.dropout} from the rank's own generator; set 0 and put a "
            "heterps_hpc.models.layers.CounterDropout after it"
        )
    if isinstance(part, nn.RReLU):
        return "draws from the rank's own generator; use nn.LeakyReLU"
    return None
