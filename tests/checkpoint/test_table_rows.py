"""Rows of a checkpoint into a table: what the core refuses is reported as the checkpoint's."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_hpc.checkpoint import Contents, DamagedCheckpoint
from heterps_hpc.core import Table, TableConfig
from heterps_hpc.errors import UserError
from heterps_hpc.runtime.state.table_rows import load_table
from tests.checkpoint.made import NUM_PARTITIONS, make_checkpoint


def make_table(partitions: range = range(NUM_PARTITIONS)) -> Table:
    config = TableConfig(
        dim=4, name="user", optimizer="adagrad_rowwise", num_partitions=NUM_PARTITIONS
    )
    return Table(config, partitions)


def test_a_table_takes_its_partitions_and_tells_that_it_gets_on(tmp_path: Path) -> None:
    ticks: list[None] = []
    with Contents(make_checkpoint(tmp_path)) as contents:
        tables = [make_table(range(2)), make_table(range(2, NUM_PARTITIONS))]
        for table in tables:
            load_table(contents, "user", table, lambda: ticks.append(None))
    assert [len(table) > 0 for table in tables] == [True, True]
    assert sum(map(len, tables)) == 60
    assert len(ticks) == NUM_PARTITIONS


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (MemoryError(), UserError, r"no memory for 60 rows of table 'user'.*hot_bytes"),
        (ValueError("2^31"), DamagedCheckpoint, r"table 'user' cannot be loaded: 2\^31"),
    ],
    ids=["memory", "refused"],
)
def test_what_the_core_refuses_is_one_line_for_the_user(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[Exception],
    said: str,
) -> None:
    def refuse(self: Table, num_rows: int) -> None:
        raise error

    monkeypatch.setattr(Table, "reserve", refuse)
    with (
        Contents(make_checkpoint(tmp_path)) as contents,
        pytest.raises(kind, match=said) as raised,
    ):
        load_table(contents, "user", make_table(), lambda: None)
    assert "\n" not in str(raised.value)


def test_a_table_of_another_shape_is_refused(tmp_path: Path) -> None:
    other = Table(TableConfig(dim=5, name="user", num_partitions=NUM_PARTITIONS))
    with (
        Contents(make_checkpoint(tmp_path)) as contents,
        pytest.raises(DamagedCheckpoint, match=r"table 'user' is .*dim=4.*here .*dim=5"),
    ):
        load_table(contents, "user", other, lambda: None)
