"""Waiting for something that the host can only look at: a message, an event of a device, a sum."""

from __future__ import annotations

import time
from collections.abc import Callable

_SPIN_SECONDS = 2e-4  # what is about to come is worth a spin
_MIN_NAP_SECONDS = 5e-5  # longer waits leave the core to the reader's thread and to other ranks
# Looking is work too: every 0.1 ms it takes a third of a node that has a fifth of a core, and MPI's
# own waiting, which never sleeps, takes all of it, just before the rank would need it to compute.
_NAP_SHARE = 1 / 16
_MAX_NAP_SECONDS = 5e-4


def wait_until(done: Callable[[], bool]) -> float:
    """Look again and again, less often the longer it takes.

    Gives the seconds in which looks worked: what they took beyond the quickest of them, which found
    nothing to do.
    """
    started = began = time.perf_counter()
    looking, quickest, num_looks = 0.0, float("inf"), 0
    while True:
        over = done()
        now = time.perf_counter()
        looking += now - began
        quickest = min(quickest, now - began)
        num_looks += 1
        if over:
            return looking - (num_looks - 1) * quickest
        waited = now - started
        if waited > _SPIN_SECONDS:
            time.sleep(min(max(waited * _NAP_SHARE, _MIN_NAP_SECONDS), _MAX_NAP_SECONDS))
        began = time.perf_counter()
