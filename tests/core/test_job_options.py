"""What a job file says of its tables reaches them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from heterps_hpc.config import Job
from heterps_hpc.core import Table
from heterps_hpc.errors import UserError
from heterps_hpc.model import Model, TableSpec
from heterps_hpc.runtime.tables import table_config
from heterps_hpc.table_size import expected_rows


def job_of(train: dict[str, Any]) -> Job:
    return Job.parse(
        {
            "name": "options",
            "model": {"name": "ctrdnn"},
            "data": {"train": "/data"},
            "train": {"batch_size": 8, **train},
        },
        "job",
    )


def table_of(train: dict[str, Any]) -> Table:
    job = job_of(train)
    spec = TableSpec("user", dim=2000, init_scale=0.5)
    model = cast(Model, SimpleNamespace(table=lambda name: spec))
    return Table(table_config(model, "user", job, "rank0"))


def first_row(table: Table) -> tuple[Any, Any]:
    keys = np.array([9], np.uint64)
    table.pull(keys, out=np.empty((1, 2000), np.float32))
    _, vectors, state = table.read(keys)
    return vectors, state


@pytest.mark.parametrize(
    ("init", "deviation"), [("uniform", 0.5 / 3**0.5), ("normal", 0.5), ("zeros", 0.0)]
)
def test_new_rows_are_drawn_as_the_job_says(init: str, deviation: float) -> None:
    vectors, _ = first_row(table_of({"tables": {"init": init}}))
    assert vectors.std() == pytest.approx(deviation, rel=0.1)


def test_sums_of_adagrad_start_where_the_job_says() -> None:
    assert (first_row(table_of({}))[1] == 0).all()
    _, state = first_row(table_of({"sparse": {"initial_accumulator": 0.25}}))
    assert (state == 0.25).all()


@pytest.mark.parametrize(("weights", "kept"), [({}, 0), ({"show_weight": 3.0}, 1)])
def test_scores_weigh_shows_as_the_job_says(weights: dict[str, float], kept: int) -> None:
    """One show without a click: 0.1 by default, too little to stay."""
    table = table_of(
        {"tables": {"counters": True, "evict_below_score": 0.5, "evict_every": 1, **weights}}
    )
    handle = table.pull(np.array([9], np.uint64), out=np.empty((1, 2000), np.float32))
    assert handle is not None
    table.push([handle], [np.zeros((1, 2000), np.float32)], step=0)
    assert len(table) == kept


@pytest.mark.parametrize(
    "train",
    [
        {"tables": {"init": "ones"}},
        {"tables": {"show_weight": -1}},
        {"tables": {"expected_rows": 0}},
        {"sparse": {"initial_accumulator": -0.1}},
    ],
)
def test_wrong_options_are_refused(train: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="job"):
        table_of(train)


def test_a_file_in_the_way_of_cold_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"spill_dir: \S+/file on \S+ cannot be a directory"):
        table_of({"tables": {"hot_bytes": 1, "spill_dir": str(tmp_path / "file")}})


@pytest.mark.parametrize(
    ("said", "expected"), [(None, {}), (7, {"user": 7, "item": 7}), ({"item": 9}, {"item": 9})]
)
def test_rows_are_expected_of_all_tables_or_by_name(said: Any, expected: dict[str, int]) -> None:
    model = cast(Model, SimpleNamespace(tables=[TableSpec("user", 2), TableSpec("item", 2)]))
    assert expected_rows(model, job_of({"tables": {"expected_rows": said}}).train) == expected
    with pytest.raises(UserError, match="names film; the model's tables are user, item"):
        expected_rows(model, job_of({"tables": {"expected_rows": {"film": 1}}}).train)


def test_rows_are_kept_as_short_as_the_job_says() -> None:
    sgd = {"sparse": {"optimizer": "sgd"}}  # no state, which is not shortened
    short = table_of({"tables": {"precision": "bfloat16"}, **sgd})
    assert short.row_bytes < table_of(sgd).row_bytes / 1.9
    with pytest.raises(UserError, match="`precision` is float64"):
        job_of({"precision": "float64", "tables": {"precision": "float16"}})
