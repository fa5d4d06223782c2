"""Keys that admission kept out of a pull stay out of the same pull made again after a restart."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from heterps_hpc.core import Pulled, Table, TableConfig
from tests.core.workload import table_contents

CONFIG = TableConfig(dim=4, admission=3, num_partitions=8, optimizer="sgd", lr=1.0)


def pull(table: Table, keys: list[int], absent: NDArray[np.uint64] | None = None) -> Pulled:
    out = np.empty((len(keys), 4), np.float32)
    handle = table.pull(np.array(keys, np.uint64), out=out, absent=absent)
    assert handle is not None
    return handle


def push(table: Table, handle: Pulled, step: int) -> None:
    gradient = np.full((handle.num_samples, 4), 0.5, np.float32)
    table.push([handle], [gradient], step=step)


def restarted(table: Table) -> Table:
    """What a checkpoint makes of a table."""
    other = Table(CONFIG)
    snapshot = table.snapshot()
    for partition in snapshot.partitions():
        for rows in snapshot.read(partition):
            other.load(partition, rows)
        other.load_extra(partition, snapshot.extra(partition))
    snapshot.close()
    return other


def test_absent_keys_are_named_once_each() -> None:
    table = Table(CONFIG)
    assert pull(table, [7, 3, 7, 7, 5]).absent.tolist() == [3, 5, 7]
    assert (
        Table(TableConfig(dim=4))
        .pull(np.array([1], np.uint64), out=np.empty((1, 4), np.float32))
        .absent.tolist()
        == []
    )  # type: ignore[union-attr]


@pytest.mark.parametrize("batch", [[1, 2], [1, 1, 2, 3], [3]])
def test_a_pull_ahead_of_a_restart_is_the_same_after_it(batch: list[int]) -> None:
    """Key 1 is admitted by a push that comes between a pull and its own push."""
    table = Table(CONFIG)
    push(table, pull(table, [1, 3, 3]), 0)
    ahead = pull(table, batch)
    push(table, pull(table, [1]), 1)
    later = pull(table, [1])  # its third sighting: it has a row now
    absent = ahead.absent
    push(table, later, 2)

    again = restarted(table)
    repeated = pull(again, batch, absent)
    assert repeated.absent.tolist() == absent.tolist()
    for t, handle in ((table, ahead), (again, repeated)):
        push(t, handle, 3)
        push(t, pull(t, [1, 2, 3]), 4)
    assert table_contents(again) == table_contents(table)


def test_without_the_list_the_result_would_differ() -> None:
    """So the test above can fail."""
    table = Table(CONFIG)
    push(table, pull(table, [1]), 0)
    ahead = pull(table, [1])
    push(table, pull(table, [1]), 1)
    again = restarted(table)
    push(table, ahead, 2)
    push(again, pull(again, [1]), 2)
    assert table_contents(again) != table_contents(table)


def test_keys_of_other_shards_may_be_named() -> None:
    keys = np.arange(100, dtype=np.uint64)
    shard = Table(TableConfig(dim=4, num_partitions=8), partitions=[0, 3])
    out = np.empty((100, 4), np.float32)
    handle = shard.pull(keys, out=out, absent=keys)
    assert handle is not None
    assert 0 < len(handle.absent) < 100  # only its own
    assert not out.any()
    assert len(shard) == 0


def test_evaluation_refuses_the_list() -> None:
    table = Table(CONFIG)
    keys = np.zeros(1, np.uint64)
    with pytest.raises(ValueError, match="absent"):
        table.pull(keys, out=np.empty((1, 4), np.float32), train=False, absent=keys)
    with pytest.raises(ValueError, match="absent must be a contiguous"):
        table.pull(keys, out=np.empty((1, 4), np.float32), absent=np.zeros(1, np.int32))  # type: ignore[arg-type]
