"""Sum of dense gradients over the replicas of a stage.

The gradients of a stage live in one flat buffer, reduced as one tensor: how Horovod fuses several
tensors depends on timing, and with it the order of summation, so bits would not repeat; and small
layers would each pay its cycle time.
"""

from __future__ import annotations

import logging
import os
import socket
from importlib.metadata import version
from typing import Any, Literal, Protocol

import torch
import torch.distributed
from mpi4py import MPI

from heterps_hpc.errors import UserError
from heterps_hpc.runtime.device import CPU, Device, HostCopy, collective_backend

log = logging.getLogger(__name__)


class Reducer(Protocol):
    """Sums a tensor in place over a stage."""

    name: str

    def start(self, flat: torch.Tensor) -> None:
        """Begin to sum; `flat` must not be touched until `finish`."""

    def finish(self) -> None:
        """Wait until the sum is there."""

    def close(self) -> None:
        """Give resources back."""


class NoReducer:
    """A stage of one rank has nothing to sum."""

    name = "none"

    def start(self, flat: torch.Tensor) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class HorovodReducer:
    """Horovod's ring-allreduce over the stage's communicator."""

    name = "horovod"

    def __init__(self, comm: MPI.Intracomm) -> None:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", str(_cycle_milliseconds()))
        import horovod.torch as hvd
        from horovod.torch import init  # not there if Horovod was built without torch

        self._hvd = hvd
        init(comm=comm)
        self._handle: int | None = None

    def sums_on(self, device: torch.device) -> bool:
        """Whether this build sums in a device's own memory."""
        return device.type == "cuda" and bool(self._hvd.nccl_built())

    def start(self, flat: torch.Tensor) -> None:
        """Hand the buffer to Horovod's thread."""
        self._handle = self._hvd.allreduce_async_(flat, op=self._hvd.Sum, name="gradients")

    def finish(self) -> None:
        """Wait for Horovod's thread."""
        self._hvd.synchronize(self._handle)

    def close(self) -> None:
        """Stop Horovod's thread."""
        self._hvd.shutdown()


def _cycle_milliseconds() -> int:
    """How often Horovod's thread asks its peers for work, if none comes from this rank.

    At its default of 1 ms that costs a CPU rank a fifth of its core; the sum of one flat buffer
    can wait a few more. Ours (tools/bootstrap/horovod_wheel.py) wakes when there is work and need
    not ask at all.
    """
    return 1000 if "+heterps" in version("horovod") else 5


class MpiReducer:
    """MPI_Allreduce on host memory, for machines where Horovod does not build, and for tests."""

    name = "mpi"

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._flat: torch.Tensor | None = None

    def start(self, flat: torch.Tensor) -> None:
        """Remember the buffer; the work is done in `finish`."""
        self._flat = flat

    def finish(self) -> None:
        """Sum in place."""
        assert self._flat is not None
        self._comm.Allreduce(MPI.IN_PLACE, self._flat.numpy(), op=MPI.SUM)

    def close(self) -> None:
        """Nothing to do."""


class TorchReducer:
    """torch.distributed: NCCL or XCCL on a device that has it, for sites without Horovod there."""

    name = "torch"

    def __init__(self, comm: MPI.Intracomm, backend: str) -> None:
        self.name = f"torch ({backend})"
        torch.distributed.init_process_group(
            backend, store=_shared_store(comm), rank=comm.rank, world_size=comm.size
        )
        self._work: torch.distributed.Work | None = None

    def start(self, flat: torch.Tensor) -> None:
        """Begin to sum, in a thread or on a stream of the library's."""
        self._work = torch.distributed.all_reduce(flat, async_op=True)

    def finish(self) -> None:
        """Wait; on a device it is the computing stream that waits."""
        assert self._work is not None
        self._work.wait()

    def close(self) -> None:
        """End the process group, and with it its threads."""
        torch.distributed.destroy_process_group()


class HostReducer:
    """Sums a device's gradients by a reducer that works on host memory, through a pinned buffer.

    The gradients leave as soon as they are computed, while the host pushes rows and pulls others.
    """

    def __init__(self, inner: Reducer, device: Device) -> None:
        self.name = f"{inner.name} through the host"
        self._inner = inner
        self._device = device
        self._flat: torch.Tensor | None = None
        self._host: torch.Tensor | None = None
        self._copy: HostCopy | None = None

    def start(self, flat: torch.Tensor) -> None:
        """Begin to copy to the host."""
        if self._host is None:
            self._host = self._device.buffer(1, flat.numel(), flat.dtype)[0]
        self._flat = flat
        self._copy = HostCopy(self._host, self._device.download(flat, self._host))

    def finish(self) -> None:
        """Sum there, and begin to copy back; the update waits for that on the device."""
        assert self._copy is not None
        assert self._flat is not None
        host = self._copy.tensor()
        self._inner.start(host)
        self._inner.finish()
        self._flat.copy_(host, non_blocking=True)

    def close(self) -> None:
        """Give back what the inner one has."""
        self._inner.close()


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


def make_reducer(comm: MPI.Intracomm, name: ReducerName, device: Device) -> Reducer:
    """The reducer of a stage, as all ranks agreed; they all sum on the device, or none does."""
    if comm.size == 1:
        return NoReducer()
    if name == "mpi":
        return _on_host(MpiReducer(comm), device)
    if name == "torch":
        backends = set(comm.allgather(collective_backend(device.device)))
        own = backends.pop() if len(backends) == 1 else None
        return _on_host(TorchReducer(comm, "gloo"), device) if not own else TorchReducer(comm, own)
    horovod = HorovodReducer(comm)
    everywhere = all(comm.allgather(horovod.sums_on(device.device)))
    return horovod if everywhere else _on_host(horovod, device)


def _on_host(reducer: Reducer, device: Device) -> Reducer:
    return reducer if device.is_host else HostReducer(reducer, device)


def _shared_store(comm: MPI.Intracomm) -> Any:  # a Store of torch.distributed
    """Where the ranks of a stage find each other: on its first rank, at a port that is free."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in every torch

    host = comm.bcast(socket.gethostname())
    own = None
    if comm.rank == 0:
        own = TCPStore(host, 0, comm.size, is_master=True, wait_for_workers=False)
    port = comm.bcast(None if own is None else own.port)
    return own or TCPStore(host, port, comm.size, is_master=False)
