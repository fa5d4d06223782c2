"""Sum of dense gradients over the replicas of a stage.

The gradients of a stage live in one flat buffer, reduced as one tensor: how Horovod fuses several
tensors depends on timing, and with it the order of summation, so bits would not repeat; and small
layers would each pay its cycle time.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
from importlib.metadata import version
from typing import Literal, Protocol

import torch
import torch.distributed
from mpi4py import MPI
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from heterps_hpc.errors import UserError
from heterps_hpc.runtime.device import Device, HostCopy, collective_backend

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


def make_reducer(
    comm: MPI.Intracomm, choice: Literal["auto", "horovod", "mpi", "torch"], device: Device
) -> Reducer:
    """The reducer for a stage, the same on all its ranks; `auto` is Horovod where all have it."""
    if comm.size == 1:
        return NoReducer()
    if choice == "torch":
        backend = collective_backend(device.device)
        reducer: Reducer = TorchReducer(comm, backend or "gloo")
        return reducer if backend is not None or device.is_host else HostReducer(reducer, device)
    if choice == "mpi" or not _all_have_horovod(comm, choice):
        mpi = MpiReducer(comm)
        return mpi if device.is_host else HostReducer(mpi, device)
    horovod = HorovodReducer(comm)
    on_device = device.is_host or horovod.sums_on(device.device)
    return horovod if on_device else HostReducer(horovod, device)


def _all_have_horovod(comm: MPI.Intracomm, choice: str) -> bool:
    """Ranks agree: one that summed by other means than the rest would be waited for forever."""
    problem = None
    try:
        from horovod.torch import init  # noqa: F401 (not there if built without torch)
    except ImportError as error:
        problem = f"rank {MPI.COMM_WORLD.rank} on {platform.node()}: {error}"
    problems = [each for each in comm.allgather(problem) if each is not None]
    if not problems:
        return True
    if choice == "horovod":
        raise UserError(
            f"train.reducer is 'horovod', but it cannot be imported ({problems[0]}); build it "
            "(make setup) or choose 'mpi' or 'torch'"
        )
    log.warning("Horovod cannot be imported (%s); summing with MPI_Allreduce instead", problems[0])
    return False


def _shared_store(comm: MPI.Intracomm) -> TCPStore:
    """Where the ranks of a stage find each other: on its first rank, at a port that is free."""
    host = comm.bcast(socket.gethostname())
    own = None
    if comm.rank == 0:
        own = TCPStore(host, 0, comm.size, is_master=True, wait_for_workers=False)
    port = comm.bcast(None if own is None else own.port)
    return own or TCPStore(host, port, comm.size, is_master=False)
