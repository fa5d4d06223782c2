"""Times of tables that are worked on at once."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import torch

from heterps_hpc.core import ThreadPool
from heterps_hpc.runtime.device import Device
from heterps_hpc.runtime.measure.layer_timer import LayerTimes
from heterps_hpc.runtime.tables import TableShards

SECONDS = 0.05


def test_tables_at_once_count_as_long_as_they_keep_the_step_waiting() -> None:
    times = LayerTimes(dict.fromkeys("abcd", "embedding"), Device(torch.device("cpu")))
    shards: Any = SimpleNamespace(
        tables=dict.fromkeys("abcd"), thread_pool=ThreadPool(2), observer=times
    )
    began = time.perf_counter()
    for _ in ("pull", "push"):
        TableShards.each_table(shards, lambda table: time.sleep(SECONDS))
    took = time.perf_counter() - began
    assert 4 * SECONDS <= times.stopwatch.seconds()["embedding"] <= took + SECONDS
