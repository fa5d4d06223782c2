"""All ranks sum with the same reducer, whatever is installed where."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heterps_hpc.errors import UserError
from heterps_hpc.runtime import reducer_choice as reducer
from heterps_hpc.runtime.reducer_choice import agree_on_reducer

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
    with pytest.raises(UserError, match=r"on rank 1, 3 \(No module.*choose 'mpi' or 'torch'"):
        agree_on_reducer(world(WITHOUT, None, WITHOUT), "horovod", reduces=True)


def test_mpi_asks_for_nothing() -> None:
    assert agree_on_reducer(world(None), "mpi", reduces=True) == "mpi"


def test_torch_is_for_all_ranks_or_the_odd_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agree_on_reducer(world(None), "torch", reduces=True) == "torch"
    with pytest.raises(UserError, match=r"on rank 2 \(it is built without gloo\).*choose 'mpi'"):
        agree_on_reducer(world(None, "it is built without gloo"), "torch", reduces=True)
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    with pytest.raises(UserError, match="on rank 0 "):
        agree_on_reducer(world(None), "torch", reduces=True)
    assert agree_on_reducer(world(None), "torch", reduces=False) == "torch"


@pytest.mark.parametrize(
    ("other", "name"),
    [("sim", "torch (sim)"), (None, "torch (gloo) through the host")],
)
def test_all_ranks_of_a_stage_sum_on_the_device_or_none(
    other: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that summed on its device would be waited for by others that sum on the host."""
    fake: Any = SimpleNamespace(device=torch.device("meta"), is_host=False)
    monkeypatch.setattr(reducer, "collective_backend", lambda device: "sim")
    monkeypatch.setattr(
        reducer, "TorchReducer", lambda comm, backend: SimpleNamespace(name=f"torch ({backend})")
    )
    comm: Any = SimpleNamespace(size=2, allgather=lambda mine: [mine, other])
    found = reducer.make_reducer(comm, "torch", fake)
    assert found.name == name


@pytest.mark.parametrize(
    ("choice", "nccl", "mpi", "name"),
    [
        ("auto", True, True, "horovod"),
        ("auto", False, True, "mpi on the device"),
        ("auto", False, False, "horovod through the host"),
        ("horovod", False, True, "horovod through the host"),
        ("mpi", True, True, "mpi on the device"),
        ("mpi", True, False, "mpi through the host"),
    ],
)
def test_sums_stay_on_the_device_where_a_library_can(
    choice: str, nccl: bool, mpi: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL first, then MPI that takes the device's memory, then the host's memory."""
    fake: Any = SimpleNamespace(device=torch.device("meta"), is_host=False)
    closed: list[str] = []
    horovod = SimpleNamespace(
        name="horovod", sums_on=lambda device: nccl, close=lambda: closed.append("horovod")
    )
    monkeypatch.setattr(reducer, "HorovodReducer", lambda comm: horovod)
    monkeypatch.setattr(reducer, "takes_memory_of", lambda device: mpi)
    comm: Any = SimpleNamespace(size=2, allgather=lambda mine: [mine, mine])
    agreed: Any = "horovod" if choice == "auto" else choice
    found = reducer.make_reducer(comm, agreed, fake, may_change=choice == "auto")
    assert found.name == name
    assert closed == (["horovod"] if choice == "auto" and name.startswith("mpi") else [])
