"""Times of tables that are worked on at once."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from heterps_hpc.core import ThreadPool
from heterps_hpc.runtime.measure.layer_timer import LayerTimes

SECONDS = 0.05


class SlowTable:
    """A table whose pulls and pushes take a known time."""

    def pull(self) -> None:
        time.sleep(SECONDS)

    def push(self) -> None:
        time.sleep(SECONDS)


def test_tables_at_once_count_as_long_as_they_keep_the_step_waiting() -> None:
    shards: Any = SimpleNamespace(
        tables={name: SlowTable() for name in "abcd"}, thread_pool=ThreadPool(2)
    )
    times = LayerTimes()
    times.watch_tables(shards, dict.fromkeys("abcd", "embedding"))
    began = time.perf_counter()
    shards.thread_pool.for_each(lambda table: table.pull(), shards.tables.values())
    shards.thread_pool.for_each(lambda table: table.push(), shards.tables.values())
    took = time.perf_counter() - began
    assert 4 * SECONDS <= times.seconds["embedding"] <= took + SECONDS
