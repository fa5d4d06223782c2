"""Torch modules for models whose result must not depend on how a batch is cut.

Imported only inside `make` factories, so that a login node can build a model without torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps_hpc.errors import UserError
from heterps_hpc.negatives import stream_seed


@dataclass(frozen=True)
class _Samples:
    seed: int
    epoch: int
    ids: Tensor


_current: ContextVar[_Samples | None] = ContextVar("samples", default=None)


@contextlib.contextmanager
def samples(seed: int, epoch: int, sample_ids: Tensor) -> Iterator[None]:
    """Tell the modules which samples the next forward passes are about: int64[rows]."""
    token = _current.set(_Samples(seed, epoch, sample_ids))
    try:
        yield
    finally:
        _current.reset(token)


class CounterDropout(nn.Module):
    """Dropout whose mask is a function of (seed, place, epoch, sample, column).

    `place` is the layer's name and the module's path in it; `make_module` sets it. Inputs are
    matrices with one row per sample; further dimensions are treated as columns.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UserError(f"CounterDropout({p}): the probability must be in [0, 1)")
        self.p = p
        self.place = ""

    def forward(self, values: Tensor) -> Tensor:
        """Zero a share p of the values and scale the rest by 1 / (1 - p)."""
        if not self.training or self.p == 0 or values.is_meta:  # meta: only shapes are wanted
            return values
        current = _current.get()
        if current is None:
            raise RuntimeError("CounterDropout runs inside `with samples(seed, epoch, sample_ids)`")
        if len(current.ids) != len(values):
            raise RuntimeError(f"{len(current.ids)} sample ids for {len(values)} rows")
        stream = stream_seed("dropout", self.place, current.seed, current.epoch)
        columns = values[0].numel() if len(values) else 0
        rows = mix64(current.ids.to(values.device) ^ _signed(stream))
        steps = torch.arange(columns, device=values.device) * _signed(_GOLDEN)
        bits = mix64(rows[:, None] + steps[None, :]).reshape(values.shape)
        # 53 bits hold a double exactly, so the comparison is the same on every device
        keep = _shift(bits, 11).to(torch.float64) * 2.0**-53 >= self.p
        return values * keep / (1 - self.p)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"p={self.p}"


_GOLDEN = 0x9E3779B97F4A7C15


def _signed(bits: int) -> int:
    """64 bits as torch's int64 takes them."""
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def _shift(values: Tensor, count: int) -> Tensor:
    """Logical shift to the right; torch's own is arithmetic."""
    return (values >> count) & ((1 << (64 - count)) - 1)


def mix64(values: Tensor) -> Tensor:
    """SplitMix64 on int64 tensors: the same bits as `heterps_hpc.negatives.mix64`."""
    mixed = values + _signed(_GOLDEN)
    mixed = (mixed ^ _shift(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shift(mixed, 27)) * _signed(0x94D049BB133111EB)
    return mixed ^ _shift(mixed, 31)


class _LinearOfParts(torch.autograd.Function):
    """A linear layer over inputs side by side, without laying them side by side in memory.

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
    """A linear layer over matrices side by side."""
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
    """Fully connected layer over its inputs side by side, then ReLU and dropout if wanted."""

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
        """Both as matrices; the negatives of a sample lie side by side in its row."""
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
        rivals = functional.cosine_similarity(user[:, None, :], others, dim=2, eps=1e-6)
        return score, rivals


class PairwiseHinge(nn.Module):
    """A clicked item should beat each negative by a margin; rows without a click teach nothing."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, score: Tensor, rivals: Tensor, label: Tensor) -> Tensor:
        """[rows]"""
        lack = torch.relu(self.margin - score[:, None] + rivals).mean(dim=1)
        return lack * label.to(score.dtype)


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
        told_apart = functional.softplus(-score) + functional.softplus(noise).sum(dim=1)
        return told_apart * label.to(score.dtype)
