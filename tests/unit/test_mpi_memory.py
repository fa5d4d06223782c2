"""What an MPI says of the memory that it can be given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mpi4py import MPI

from heterps_hpc.runtime import mpi_memory
from heterps_hpc.runtime.mpi_memory import takes_memory_of

CUDA, XPU, CPU = (torch.device(kind) for kind in ("cuda", "xpu", "cpu"))


def world(listed: str | None) -> Any:
    """An MPI whose world has that value of the standard's key."""
    info = SimpleNamespace(Get=lambda key: listed, Free=lambda: None)
    comm = SimpleNamespace(Get_info=lambda: info)
    return SimpleNamespace(COMM_WORLD=comm, __file__=MPI.__file__)


@pytest.mark.parametrize(
    ("listed", "device", "takes"),
    [
        ("mpi,system,cuda", CUDA, True),
        ("mpi, system, cuda:device", CUDA, True),
        ("system,cuda:host:device,level_zero:host", CUDA, True),
        ("system,cuda:host:device,level_zero:host", XPU, False),
        ("system,cuda:device", XPU, False),
        ("system,rocm:device", CUDA, False),
        ("mpi,system", CUDA, False),
        (None, CUDA, False),
        ("cpu,cuda", CPU, False),
    ],
)
def test_the_kinds_of_memory_that_an_mpi_lists(
    listed: str | None, device: torch.device, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_memory, "MPI", world(listed))
    monkeypatch.setattr(mpi_memory, "_function_says_so", lambda kind: False)
    assert takes_memory_of(device) is takes


def test_torch_calls_amds_devices_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_memory, "MPI", world("system,rocm:device"))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert takes_memory_of(CUDA)


@pytest.mark.parametrize(
    ("functions", "takes"),
    [
        ({}, False),
        ({"MPIX_Query_cuda_support": lambda: 0}, False),
        ({"MPIX_Query_cuda_support": lambda: 1}, True),
        ({"MPIX_Query_ze_support": lambda: 1}, False),
    ],
)
def test_an_older_mpi_is_asked_by_a_function(
    functions: dict[str, Any], takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_memory, "MPI", world(None))
    library = SimpleNamespace(**functions)
    monkeypatch.setattr(mpi_memory.ctypes, "CDLL", lambda path: library)
    assert takes_memory_of(CUDA) is takes


def test_this_mpi_answers() -> None:
    """Not built for a device, or this is a machine with one: either way it can be asked."""
    assert takes_memory_of(CUDA) in (True, False)
    assert not takes_memory_of(torch.device("meta"))
