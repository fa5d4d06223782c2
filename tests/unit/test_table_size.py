"""The size of a table as planned and checked is the size that the core gives it."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_hpc.config import Job
from heterps_hpc.core import Table
from heterps_hpc.dataset import SlotSpec
from heterps_hpc.model import Lookup, Model, NegativeSlot, TableSpec, dense, embedding
from heterps_hpc.runtime.tables import table_config
from heterps_hpc.table_size import certain_rows, num_rows, row_bytes, snapshot_share, table_bytes

OPTIMIZERS = ("sgd", "adagrad_rowwise", "adagrad", "adam")
FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "counters": {"counters": True},
    "ages": {"evict_after_steps": 3},
    "changes": {"track_changes": True},
    "tiers": {"hot_bytes": 1 << 20, "spill_dir": "spill"},
}


def job(train: dict[str, Any] | None = None, **other: Any) -> Job:
    return Job.parse(
        {
            "name": "size",
            "model": {"name": "ctrdnn"},
            "data": {"train": "nowhere"},
            "train": {"batch_size": 4, **(train or {})},
            **other,
        },
        "job",
    )


def model(dim: int) -> Model:
    """One table read by a slot, by a second one, and by keys drawn from the second."""
    lookups = (Lookup("a", "t", "x"), Lookup("b", "t", "x"), Lookup("drawn", "t", "x"))
    return Model(
        "m",
        (embedding("e", lookups), dense("fc", lambda: None, "x", "score loss")),
        (TableSpec("t", dim),),
        (NegativeSlot("drawn", "b", 2),),
    )


@pytest.mark.parametrize("fields", FIELDS)
def test_a_row_is_as_wide_as_in_the_core(fields: str, tmp_path: Path) -> None:
    for optimizer, dim, precision in product(
        OPTIMIZERS, (1, 3, 8, 16, 17, 64), ("float32", "float64", "bf16")
    ):
        options = FIELDS[fields] | ({"spill_dir": str(tmp_path)} if fields == "tiers" else {})
        asked = job({"precision": precision, "sparse": {"optimizer": optimizer}, "tables": options})
        suffix = f"{optimizer}-{dim}-{precision}"  # of its spill file
        table = Table(table_config(model(dim), "t", asked, suffix))
        assert row_bytes(dim, asked.train) == table.row_bytes, (optimizer, dim, precision)


def test_rows_of_two_bytes_are_as_wide_as_in_the_core() -> None:
    for optimizer, dim in product(OPTIMIZERS, (1, 3, 8, 17)):
        options = {"precision": "bfloat16", "counters": True}
        asked = job({"sparse": {"optimizer": optimizer}, "tables": options})
        table = Table(table_config(model(dim), "t", asked, "test"))
        assert row_bytes(dim, asked.train) == table.row_bytes, (optimizer, dim)


def test_a_filled_table_takes_about_as_much_memory_as_predicted() -> None:
    asked = job({"tables": {"num_partitions": 4}})
    slots = (SlotSpec(name="a", cardinality=150_000), SlotSpec(name="b", cardinality=50_000))
    table = Table(table_config(model(16), "t", asked, "test"))
    keys = np.arange(200_000, dtype=np.uint64)
    table.pull(keys, out=np.empty((len(keys), 16), np.float32))
    predicted = table_bytes(model(16), "t", asked.train, slots)
    assert table.memory_bytes() == pytest.approx(predicted, rel=0.15)


def test_sketches_of_an_empty_table_take_as_much_memory_as_predicted() -> None:
    """Else a slip of the finger takes all memory of a node before the first batch."""
    tables = {"num_partitions": 4, "admit_after": 2, "sketch_bytes": 1 << 20}
    asked = job({"tables": tables})
    table = Table(table_config(model(4), "t", asked, "test"))
    slots = (SlotSpec(name="a", cardinality=1), SlotSpec(name="b", cardinality=1))
    predicted = table_bytes(model(4), "t", asked.train, slots)
    assert table.memory_bytes() == pytest.approx(predicted, rel=0.1)


@pytest.mark.parametrize("expected", [1000, {"t": 1000}])
def test_rows_that_a_job_expects_count_where_the_data_has_fewer(expected: object) -> None:
    def size(keys: int, tables: dict[str, object]) -> float:
        slots = (SlotSpec(name="a", cardinality=keys), SlotSpec(name="b", cardinality=5))
        return table_bytes(model(4), "t", job({"tables": tables}).train, slots)

    assert size(10, {"expected_rows": expected}) == size(995, {})
    assert size(5000, {"expected_rows": expected}) == size(5000, {})


def test_slots_that_share_a_table_count_together_and_drawn_ones_with_their_source() -> None:
    slots = (SlotSpec(name="a", cardinality=7), SlotSpec(name="b", cardinality=5))
    assert num_rows(model(4), "t", slots) == 12


@pytest.mark.parametrize(
    ("train", "rows"),
    [
        ({}, 70),  # the larger slot's: the other may have the same keys
        ({"epochs": 3}, 70),
        ({"steps": 5}, 14),  # a fifth of the samples has a fifth of the keys at least
        ({"steps": 500}, 70),
        ({"tables": {"admit_after": 2}}, 0),
        ({"tables": {"evict_after_steps": 9}}, 0),
        ({"tables": {"counters": True, "evict_below_score": 0.1}}, 0),
    ],
)
def test_rows_are_certain_where_every_key_gets_one_and_keeps_it(
    train: dict[str, Any], rows: int
) -> None:
    slots = (SlotSpec(name="a", cardinality=70), SlotSpec(name="b", cardinality=50))
    assert certain_rows(model(4), "t", job(train).train, slots, num_samples=100) == rows


def test_no_row_is_certain_of_sequences_which_are_cut() -> None:
    lookup = Lookup("a", "t", "x", pooling="none", max_keys=3)
    cut = Model(
        "m",
        (embedding("e", (lookup,)), dense("fc", lambda: None, "x", "score loss")),
        (TableSpec("t", 4),),
    )
    assert certain_rows(cut, "t", job().train, (SlotSpec(name="a", cardinality=70),), 100) == 0


def test_only_saves_while_training_need_memory_for_copies() -> None:
    assert snapshot_share(job()) == 0
    assert snapshot_share(job(checkpoint={"every_steps": 5})) == 1
    assert snapshot_share(job(checkpoint={"every_minutes": 5})) == 1
