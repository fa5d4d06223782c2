"""Sum of a device's gradients by a reducer that works on host memory, through a pinned buffer.

The flat buffer is cut into buckets of a fixed size, and each takes three steps: down to the host,
sum over the replicas, up again. Gradients become complete from the last layer to the first, so
the last bucket goes first:

    device    backward of layer 3 | layer 2 | layer 1 |
    copies                          3 down  | 2 down  | 1 down, 3 up | 2 up  | 1 up
    network                                 | sum 3   | sum 2        | sum 1 |

Which bucket is summed next never depends on timing, and one at a time is: how Horovod fuses several
depends on timing, and with it the order of summation.
"""

from __future__ import annotations

import torch

from heterps_hpc.runtime.device import Device, Ready
from heterps_hpc.runtime.reducer import Reducer
from heterps_hpc.runtime.waiting import wait_until

BUCKET_BYTES = 4 << 20  # a sum of this size takes long enough to hide a copy behind


class _Bucket:
    """A part of the flat buffer, on its way down, through the sum and up again."""

    def __init__(self, there: torch.Tensor, host: torch.Tensor, first: int) -> None:
        self.there, self.host = there, host
        self.first, self.last = first, first + there.numel()
        self.restart()

    def restart(self) -> None:
        """Before the next batch."""
        self.num_missing = self.there.numel()  # elements whose gradients are not complete
        self.is_leaving = False
        self.copied: Ready | None = None

    def leave(self, device: Device) -> None:
        """Begin to copy to the host."""
        if not self.is_leaving:
            self.is_leaving, self.copied = True, device.download(self.there, self.host)

    def is_here(self) -> bool:
        """Whether the host has it."""
        return self.is_leaving and (self.copied is None or self.copied.query())


class HostReducer(Reducer):
    """Buckets of a device's gradients, summed one after the other by an inner reducer."""

    def __init__(self, inner: Reducer, device: Device) -> None:
        self.name = f"{inner.name} through the host"
        self._inner = inner
        self._device = device
        self._flat: torch.Tensor | None = None
        self._host = torch.empty(0)
        self._buckets: list[_Bucket] = []  # in the order in which they are summed
        self._position = 0  # of the bucket that is summed, or is next
        self._is_summing = False
        self._has_started = False

    def add_part(self, flat: torch.Tensor, first: int, last: int) -> None:
        """These elements are complete; a bucket that has all of its own begins to leave."""
        self._prepare(flat)
        for bucket in self._buckets:
            overlap = min(last, bucket.last) - max(first, bucket.first)
            if overlap > 0:
                bucket.num_missing -= overlap
                if bucket.num_missing == 0:
                    bucket.leave(self._device)

    def _start(self, flat: torch.Tensor) -> None:
        """All is complete: what has not left yet does so now."""
        self._prepare(flat)
        for bucket in self._buckets:
            bucket.leave(self._device)
        self._has_started = True
        self.advance()

    def advance(self) -> None:
        """Start and finish sums as far as that is possible without waiting."""
        while self._position < len(self._buckets):
            bucket = self._buckets[self._position]
            if not self._is_summing:
                if not bucket.is_here():
                    return
                self._inner.start(bucket.host)
                self._is_summing = True
            if not self._inner.is_done():
                return
            self._inner.finish()
            self._is_summing = False
            # in the stream that computes: the update comes after it, and so does the next batch
            bucket.there.copy_(bucket.host, non_blocking=True)
            self._position += 1

    def is_done(self) -> bool:
        """Whether all buckets are summed."""
        self.advance()
        return self._has_started and self._position == len(self._buckets)

    def finish(self) -> torch.Tensor:
        """Sum what is left; the copies up are waited for by the update, on the device."""
        wait_until(self.is_done)
        self._has_started, self._position = False, 0
        for bucket in self._buckets:
            bucket.restart()
        return self._host

    def close(self) -> None:
        """Close the inner reducer."""
        self._inner.close()

    def _prepare(self, flat: torch.Tensor) -> None:
        """Cut the buffer; it is the same one in every batch."""
        if self._flat is flat:
            return
        assert self._flat is None
        self._flat = flat
        self._host = self._device.buffer(1, flat.numel(), flat.dtype)[0]
        size = max(1, BUCKET_BYTES // flat.element_size())
        self._buckets = [
            _Bucket(flat[first : first + size], self._host[first : first + size], first)
            for first in reversed(range(0, flat.numel(), size))
        ]
