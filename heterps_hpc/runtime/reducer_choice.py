"""Which reducer sums the dense gradients of a stage: all its ranks take the same one."""

from __future__ import annotations

import logging
from typing import Literal

import torch
from mpi4py import MPI

from heterps_hpc.errors import UserError
from heterps_hpc.runtime.device import CPU, Device, collective_backend
from heterps_hpc.runtime.finite import FiniteWatch
from heterps_hpc.runtime.half_reducer import HalfReducer
from heterps_hpc.runtime.host_reducer import HostReducer
from heterps_hpc.runtime.mpi_memory import takes_memory_of
from heterps_hpc.runtime.reducer import (
    BackgroundMpiReducer,
    HorovodReducer,
    MpiReducer,
    NoReducer,
    Reducer,
    TorchReducer,
)

log = logging.getLogger(__name__)

ReducerChoice = Literal["auto", "horovod", "mpi", "torch"]
ReducerName = Literal["horovod", "mpi", "torch"]


def agree_on_reducer(comm: MPI.Intracomm, choice: ReducerChoice, *, reduces: bool) -> ReducerName:
    """The reducer of all ranks; `auto` is Horovod where every rank that `reduces` can import it.

    Each rank deciding for itself would let some wait in Horovod for others that wait in MPI.
    """
    missing = _problem(choice) if reduces else None
    problems = {rank: why for rank, why in enumerate(comm.allgather(missing)) if why is not None}
    if not problems:
        return "horovod" if choice == "auto" else choice
    ranks = ", ".join(str(rank) for rank in problems)
    why = next(iter(problems.values()))
    if choice == "horovod":
        raise UserError(
            f"train.reducer is 'horovod', but it cannot be imported on rank {ranks} ({why}); build "
            "it there (make setup) or choose 'mpi' or 'torch'"
        )
    if choice == "torch":
        raise UserError(
            f"train.reducer is 'torch', but torch cannot sum on rank {ranks} ({why}); install "
            "another build of torch there or choose 'mpi'"
        )
    log.warning(
        "Horovod cannot be imported on rank %s (%s); all ranks sum with MPI_Allreduce", ranks, why
    )
    return "mpi"


def _problem(choice: ReducerChoice) -> str | None:
    """Why this rank cannot sum as the job says, if so."""
    if choice == "mpi":
        return None
    if choice == "torch":
        has_gloo = collective_backend(torch.device(CPU)) is not None
        return None if has_gloo else "it is built without gloo"
    try:
        from horovod.torch import init  # noqa: F401  not there if Horovod was built without torch
    except ImportError as error:
        return str(error)
    return None


def make_reducer(
    comm: MPI.Intracomm,
    name: ReducerName,
    device: Device,
    *,
    may_change: bool = False,
    halves: FiniteWatch | None = None,
) -> Reducer:
    """The reducer of a stage, as all ranks agreed; in float16 if `halves` looks after overflows."""
    if comm.size == 1:
        return NoReducer()
    whole = _whole_reducer(comm, name, device, may_change=may_change)
    return whole if halves is None else HalfReducer(whole, halves)


def _whole_reducer(
    comm: MPI.Intracomm, name: ReducerName, device: Device, *, may_change: bool
) -> Reducer:
    """All ranks of a stage sum on the device, or none does.

    If it `may_change`, a stage whose Horovod does not sum on its devices uses an MPI that does.
    """
    if name == "mpi":
        if device.is_host:
            return MpiReducer(comm)
        return _mpi_on_device(comm, device) or HostReducer(BackgroundMpiReducer(comm), device)
    if name == "torch":
        backends = set(comm.allgather(collective_backend(device.device)))
        own = backends.pop() if len(backends) == 1 else None
        return _on_host(TorchReducer(comm, "gloo"), device) if not own else TorchReducer(comm, own)
    horovod = HorovodReducer(comm)
    if all(comm.allgather(horovod.sums_on(device.device))):
        return horovod
    other = _mpi_on_device(comm, device) if may_change else None
    if other is None:
        return _on_host(horovod, device)
    horovod.close()
    return other


def _mpi_on_device(comm: MPI.Intracomm, device: Device) -> Reducer | None:
    """MPI that sums in the devices' memory, if it can on all ranks."""
    if device.is_host or not all(comm.allgather(takes_memory_of(device.device))):
        return None
    return MpiReducer(comm, device)


def _on_host(reducer: Reducer, device: Device) -> Reducer:
    return reducer if device.is_host else HostReducer(reducer, device)
