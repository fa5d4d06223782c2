"""All ranks sum with the same reducer, whatever is installed where."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from heterps_hpc.errors import UserError
from heterps_hpc.runtime.reducer import agree_on_reducer

WITHOUT = "No module named 'horovod'"


def world(*others: str | None) -> Any:
    """Rank 0 of a world whose other ranks have these problems with Horovod."""
    return SimpleNamespace(allgather=lambda mine: [mine, *others])


@pytest.fixture(autouse=True)
def installed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = SimpleNamespace(init=None)
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(torch=fake))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "horovod.torch", fake)


def test_auto_is_horovod_where_all_that_sum_have_it() -> None:
    assert agree_on_reducer(world(None, None), "auto", reduces=True) == "horovod"


def test_auto_is_mpi_for_all_where_one_rank_has_no_horovod(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert agree_on_reducer(world(None, WITHOUT), "auto", reduces=True) == "mpi"
    assert "rank 2" in caplog.text
    assert WITHOUT in caplog.text


def test_a_rank_that_sums_nothing_needs_no_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    assert agree_on_reducer(world(None), "auto", reduces=False) == "horovod"
    assert agree_on_reducer(world(None), "auto", reduces=True) == "mpi"


def test_horovod_that_is_asked_for_is_missing_on_a_rank_by_number() -> None:
    with pytest.raises(UserError, match=r"on rank 1, 3 \(No module.*choose 'mpi'"):
        agree_on_reducer(world(WITHOUT, None, WITHOUT), "horovod", reduces=True)


def test_mpi_asks_for_nothing() -> None:
    assert agree_on_reducer(world(None), "mpi", reduces=True) == "mpi"
