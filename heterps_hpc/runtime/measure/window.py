"""What loading a window of the data takes."""

from __future__ import annotations

import time
from typing import NamedTuple

from heterps_hpc.dataset.read.window import WindowLoader
from heterps_hpc.runtime.batches import key_selection, training_steps
from heterps_hpc.runtime.rank import Rank


class WindowTime(NamedTuple):
    """One window of the keys of a rank's slots."""

    rows: int
    seconds: float


def window_time(rank: Rank) -> WindowTime:
    """Load the first window twice; the second time counts, as all later windows use its memory."""
    if rank.tables is None:
        return WindowTime(0, 0.0)
    order = training_steps(rank).order
    window = next(iter(order.windows(0, 0)))
    read_ahead = rank.job.data.read_ahead
    loader = WindowLoader(rank.dataset, order.table, key_selection(rank), read_ahead)
    try:
        loader.open(window)
        for _ in range(2):
            began = time.perf_counter()
            loader.begin(window, window.rows).load()
            seconds = time.perf_counter() - began
    finally:
        loader.close()
    return WindowTime(window.num_rows, seconds)
