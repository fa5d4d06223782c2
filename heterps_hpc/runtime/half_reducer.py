"""Sum of dense gradients in float16: half the bytes."""

from __future__ import annotations

import torch

from heterps_hpc.errors import UserError
from heterps_hpc.runtime.finite import FiniteWatch
from heterps_hpc.runtime.reducer import Reducer


class HalfReducer(Reducer):
    """Sums in float16, half the bytes, as Horovod's `Compression.fp16` does.

    Gradients of a mean are small, and float16 has few numbers near zero: they are multiplied by a
    power of two, which is exact, so that magnitudes from 6e-8 to 64 keep eleven bits.
    """

    SCALE = 1024.0

    def __init__(self, inner: Reducer, watch: FiniteWatch) -> None:
        self.name = f"{inner.name} in float16"
        self._inner = inner
        self._watch = watch
        self._flat: torch.Tensor | None = None
        self._half: torch.Tensor | None = None

    def start(self, flat: torch.Tensor) -> None:
        """Round, and begin to sum."""
        self._start(flat)
        self.num_bytes, self.num_sums = self._inner.num_bytes, self._inner.num_sums

    def _start(self, flat: torch.Tensor) -> None:
        if self._half is None:
            self._half = torch.empty_like(flat, dtype=torch.float16)
        self._flat = flat
        self._half.copy_(flat.mul_(self.SCALE))
        self._inner.start(self._half)

    def advance(self) -> None:
        """Let the inner reducer make progress."""
        self._inner.advance()

    def finish(self) -> torch.Tensor:
        """Wait, and put the sum where the gradients were; all ranks have the same one."""
        assert self._flat is not None
        assert self._half is not None
        summed = self._inner.finish()
        self._watch.expect(self._watch.flag(summed), self._overflow)
        self._flat.copy_(self._half).div_(self.SCALE)
        if summed is self._half:
            return self._flat
        return summed.to(self._flat.dtype).div_(self.SCALE)  # the host has it too

    def _overflow(self) -> None:
        raise UserError(
            "a sum of dense gradients is not finite in float16, whose limit is "
            f"{torch.finfo(torch.float16).max / self.SCALE:.0f} here; set "
            "train.dense.compression to `none` (then a loss that is not a number is named)"
        )

    def close(self) -> None:
        """Close the inner reducer."""
        self._inner.close()
