"""Numbers that must be finite: the device itself looks, and the host reads its flag later.

To read a number is to stop until the device has computed it. So the device itself looks at its
numbers, and its flag is copied to the host while the host continues with other work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from heterps_hpc.runtime.device import CPU, Device, HostCopy


class FiniteWatch:
    """Flags on their way to the host, with what to do where one says no."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._coming: deque[tuple[HostCopy, Callable[[], None]]] = deque()

    def flag(self, values: torch.Tensor) -> HostCopy:
        """Whether all of them are finite, known on the host in a while."""
        finite = torch.isfinite(values).all()
        return HostCopy(finite) if finite.device.type == CPU else self._device.to_host(finite)

    def expect(self, flag: HostCopy, on_bad: Callable[[], None]) -> None:
        """Call `on_bad`, which may raise, once a flag is here and says no."""
        self._coming.append((flag, on_bad))
        self.check(wait=False)

    def check(self, *, wait: bool) -> None:
        """Look at the flags that are here, or wait for all of them."""
        if wait and self._coming:
            self._coming[-1][0].tensor()  # they arrive in order: who has the last has them all
        while self._coming and self._coming[0][0].is_here():
            flag, on_bad = self._coming.popleft()
            if not bool(flag.tensor()):
                on_bad()
