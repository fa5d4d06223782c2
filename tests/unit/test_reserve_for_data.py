"""A run from scratch gets memory for the rows that its data will surely give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from heterps_hpc.config import Job
from heterps_hpc.dataset import SlotSpec
from heterps_hpc.model import Lookup, Model, TableSpec, dense, embedding
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.measure.new_rows import reserve_as_the_job
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.state.begin import begin, reserve_for_data

SLOTS = (SlotSpec(name="a", cardinality=70), SlotSpec(name="b", cardinality=0))
MODEL = Model(
    "m",
    (
        embedding("e", (Lookup("a", "user", "x"), Lookup("b", "item", "x"))),
        dense("fc", lambda: None, "x", "score loss"),
    ),
    (TableSpec("user", 4), TableSpec("item", 4)),
)


class StandIn:
    """A table that notes whether its memory was waited for."""

    waited = False

    def wait_until_reserved(self) -> None:
        self.waited = True


def made_rank(reserved: dict[str, int], **tables: Any) -> Rank:
    raw = {"name": "r", "model": {"name": "ctrdnn"}, "data": {"train": "nowhere"}}
    job = Job.parse({**raw, "train": {"batch_size": 4, "tables": tables}}, "job")
    held = {"user": StandIn(), "item": StandIn()}
    shards = SimpleNamespace(tables=held, reserve=reserved.__setitem__)
    manifest = SimpleNamespace(slots=SLOTS, num_rows=100)
    control = SimpleNamespace(rank=0, bcast=lambda value: value)
    return cast(
        Rank,
        SimpleNamespace(
            tables=shards,
            job=job,
            model=MODEL,
            dataset=SimpleNamespace(manifest=manifest),
            world=SimpleNamespace(control=control),
        ),
    )


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({}, {"user": 70}),  # nothing is known of the other
        ({"admit_after": 2}, {}),
        ({"expected_rows": {"user": 9}}, {}),  # the job knows better
        ({"expected_rows": {"item": 9}}, {"user": 70}),
    ],
)
def test_memory_is_reserved_for_rows_that_are_certain(
    tables: dict[str, Any], expected: dict[str, int]
) -> None:
    reserved: dict[str, int] = {}
    reserve_for_data(made_rank(reserved, **tables))
    assert reserved == expected


@pytest.mark.parametrize(
    ("steps", "tables", "expected"),
    [
        (3, {}, {"user": 12}),  # no more than three batches of four can look up
        (100, {}, {"user": 70}),
        (100, {"admit_after": 2}, {}),
        (100, {"expected_rows": 9}, {}),  # it is there already
    ],
)
def test_rows_are_measured_in_memory_like_that_of_the_job(
    steps: int, tables: dict[str, Any], expected: dict[str, int]
) -> None:
    reserved: dict[str, int] = {}
    rank = made_rank(reserved, **tables)
    rank.job = rank.job.model_copy(
        update={"train": rank.job.train.model_copy(update={"steps": steps})}
    )
    reserve_as_the_job(rank)
    assert reserved == expected
    assert all(table.waited for table in rank.tables.tables.values())


def test_a_run_from_scratch_begins_with_that(tmp_path: Any) -> None:
    reserved: dict[str, int] = {}
    begin(made_rank(reserved), RunDir(tmp_path))
    assert reserved == {"user": 70}


def test_a_rank_without_tables_needs_none() -> None:
    reserve_for_data(cast(Rank, SimpleNamespace(tables=None)))
