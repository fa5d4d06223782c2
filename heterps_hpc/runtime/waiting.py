"""Waiting for something that the host can only look at: a message, an event of a device, a sum."""

from __future__ import annotations

import time
from collections.abc import Callable

_SPIN_SECONDS = 2e-4  # what is about to come is worth a spin
_NAP_SECONDS = 5e-5  # longer waits leave the core to the reader's thread and to other ranks


def wait_until(done: Callable[[], bool]) -> None:
    """Ask again and again, without holding a core for long."""
    started = time.perf_counter()
    while not done():
        if time.perf_counter() - started > _SPIN_SECONDS:
            time.sleep(_NAP_SECONDS)
