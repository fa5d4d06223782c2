"""Times of tables that are worked on at once."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heterps_hpc.core import ThreadPool
from heterps_hpc.phases import Phase
from heterps_hpc.runtime.device import Device
from heterps_hpc.runtime.measure.layer_timer import LayerTimes
from heterps_hpc.runtime.measure.program import _of_the_group, _share
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


LOOKUPS = (Phase.PULL, Phase.PUSH)


def test_all_of_a_pull_and_a_push_is_the_embeddings() -> None:
    layers = {"wide": 0.1, "deep": 0.3, "fc": 1.0}
    _share(layers, ["wide", "deep"], {Phase.PULL: 0.5, Phase.PUSH: 0.3}, LOOKUPS)
    assert layers == pytest.approx({"wide": 0.2, "deep": 0.6, "fc": 1.0})


def test_a_rank_without_tables_has_no_part_in_pulls() -> None:
    layers = {"deep": 0.0, "fc": 1.0}
    _share(layers, ["deep"], {Phase.FORWARD: 1.0}, LOOKUPS)
    assert layers == {"deep": 0.0, "fc": 1.0}


def test_a_stage_takes_as_long_as_the_rank_with_most_of_its_tables() -> None:
    ranks = [{"wide": 0.3, "deep": 0.1, "fc": 1.0}, {"wide": 0.1, "deep": 0.5, "fc": 2.0}]
    found = _of_the_group(ranks, ["wide", "deep"])
    assert found == pytest.approx({"wide": 0.1, "deep": 0.5, "fc": 1.5})
