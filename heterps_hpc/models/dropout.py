"""Dropout whose masks depend on (seed, place, epoch, sample, column), not on how a batch is cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heterps_hpc.counter_rng import GOLDEN, mix_bits, stream_seed
from heterps_hpc.errors import UserError


@dataclass(frozen=True)
class _Samples:
    seed: int
    epoch: int
    ids: Tensor


_current: ContextVar[_Samples | None] = ContextVar("samples", default=None)


@contextlib.contextmanager
def samples(seed: int, epoch: int, sample_ids: Tensor) -> Iterator[None]:
    """Which samples the next forward passes are about, for dropout: int64[rows]."""
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
        """Zero a fraction p of the values and scale the rest by 1 / (1 - p)."""
        if not self.training or self.p == 0 or values.is_meta:  # meta: only shapes are wanted
            return values
        current = _current.get()
        if current is None:
            raise RuntimeError("CounterDropout runs inside `with samples(seed, epoch, sample_ids)`")
        if len(current.ids) != len(values):
            raise RuntimeError(f"{len(current.ids)} sample ids for {len(values)} rows")
        stream = stream_seed("dropout", self.place, current.seed, current.epoch)
        columns = values[0].numel() if len(values) else 0
        rows = splitmix64(current.ids.to(values.device) ^ _signed(stream))
        steps = torch.arange(columns, device=values.device) * _signed(GOLDEN)
        bits = splitmix64(rows[:, None] + steps[None, :]).reshape(values.shape)
        # 53 bits hold a double exactly, so the comparison is the same on every device
        keep = _shift(bits, 11).to(torch.float64) * 2.0**-53 >= self.p
        return values * keep / (1 - self.p)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"p={self.p}"


def _signed(bits: int) -> int:
    """64 bits as torch's int64 takes them."""
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def _shift(values: Tensor, count: int) -> Tensor:
    """Logical shift to the right; torch's own is arithmetic."""
    return (values >> count) & ((1 << (64 - count)) - 1)


def splitmix64(values: Tensor) -> Tensor:
    """SplitMix64's step on int64 tensors, on any device: the bits of `counter_rng.splitmix64`."""
    mixed: Tensor = mix_bits(values + _signed(GOLDEN), _shift, _signed)
    return mixed
