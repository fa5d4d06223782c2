"""Sum of dense gradients over the replicas of a stage.

The gradients of a stage live in one flat buffer, reduced as one tensor: how Horovod fuses several
tensors depends on timing, and with it the order of summation, so bits would not repeat; and small
layers would each pay its cycle time.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import torch.distributed
from mpi4py import MPI

from heterps_hpc.runtime.device import Device, Ready
from heterps_hpc.runtime.waiting import wait_until


class Reducer(ABC):
    """Sums a tensor in place over a stage, and counts what is summed."""

    name: str
    num_bytes = 0  # handed over to be summed so far, by this rank
    num_sums = 0

    def advance(self) -> None:  # noqa: B027 (most sums progress by themselves)
        """Make progress without waiting; called now and then."""

    def start(self, flat: torch.Tensor) -> None:
        """Begin to sum; `flat` must not be touched until `finish`."""
        self.num_bytes += flat.nbytes
        self.num_sums += 1
        self._start(flat)

    @abstractmethod
    def _start(self, flat: torch.Tensor) -> None:
        """Begin to sum."""

    def is_done(self) -> bool:
        """Whether `finish` need not wait; only where sums progress by themselves."""
        raise NotImplementedError

    @abstractmethod
    def finish(self) -> torch.Tensor:
        """Wait until the sum is there; returns it, on the host if it is there too."""

    @abstractmethod
    def close(self) -> None:
        """Free what is held."""


class NoReducer(Reducer):
    """A stage of one rank has nothing to sum."""

    name = "none"

    def start(self, flat: torch.Tensor) -> None:
        """It is the sum already, and there is nothing to count."""
        self._flat = flat

    def _start(self, flat: torch.Tensor) -> None:
        """Nothing to do."""

    def finish(self) -> torch.Tensor:
        """Nothing to wait for."""
        return self._flat

    def close(self) -> None:
        """Nothing to do."""


class HorovodReducer(Reducer):
    """Horovod's ring-allreduce over the stage's communicator."""

    name = "horovod"

    def __init__(self, comm: MPI.Intracomm) -> None:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", str(_cycle_milliseconds()))
        import horovod.torch as hvd
        from horovod.torch import init  # not there if Horovod was built without torch

        self._hvd = hvd
        init(comm=comm)
        self._handle: int | None = None
        self._flat = torch.empty(0)

    def sums_on(self, device: torch.device) -> bool:
        """Whether this build sums in a device's own memory."""
        return device.type == "cuda" and bool(self._hvd.nccl_built())

    def _start(self, flat: torch.Tensor) -> None:
        """Hand the buffer to Horovod's thread."""
        self._flat = flat
        # Horovod remembers shapes by name, and asks all ranks again where one has changed
        name = f"gradients {flat.numel()}"
        self._handle = self._hvd.allreduce_async_(flat, op=self._hvd.Sum, name=name)

    def is_done(self) -> bool:
        """Whether Horovod's thread has the sum."""
        return bool(self._hvd.poll(self._handle))

    def finish(self) -> torch.Tensor:
        """Wait for Horovod's thread; Horovod's own waiting would take the core from it."""
        wait_until(self.is_done)
        self._hvd.synchronize(self._handle)
        return self._flat

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


class MpiReducer(Reducer):
    """MPI's allreduce, in a device's memory if MPI takes it; needs no Horovod."""

    def __init__(self, comm: MPI.Intracomm, device: Device | None = None) -> None:
        self.name = "mpi" if device is None or device.is_host else "mpi on the device"
        self._comm = comm
        self._device = device
        self._flat = torch.empty(0)
        self._ready: Ready | None = None
        self._op: MPI.Op | None = None

    def _start(self, flat: torch.Tensor) -> None:
        """Remember the buffer, and when it is complete; the work is done in `finish`."""
        self._flat = flat
        self._ready = None if self._device is None else self._device.computed()

    def finish(self) -> torch.Tensor:
        """Sum in place; MPI knows nothing of streams, so the device must be done before."""
        if self._ready is not None and not self._ready.query():
            self._ready.synchronize()
        if self._flat.dtype != torch.float16:
            wait_until(self._comm.Iallreduce(MPI.IN_PLACE, self._flat, op=MPI.SUM).Test)
            return self._flat
        halves = self._flat.cpu()
        values, op = halves.numpy().view(np.uint16), self._sum_of_halves()
        wait_until(self._comm.Iallreduce(MPI.IN_PLACE, values, op=op).Test)
        return self._flat.copy_(halves)

    def close(self) -> None:
        """Free the operation that sums halves."""
        if self._op is not None:
            self._op.Free()

    def _sum_of_halves(self) -> MPI.Op:
        """MPI knows no half: it carries them as other numbers of two bytes, and the host adds."""
        self._op = self._op or MPI.Op.Create(_add_halves, commute=True)
        return self._op


class BackgroundMpiReducer(MpiReducer):
    """The same, begun at once: it progresses whenever this rank polls its messages.

    For buckets only: where nothing is hidden behind the sum, it is no faster.
    """

    _request = MPI.REQUEST_NULL

    def _start(self, flat: torch.Tensor) -> None:
        """Begin to sum."""
        self._flat = flat
        values, op = flat.numpy(), MPI.SUM
        if flat.dtype == torch.float16:
            values, op = values.view(np.uint16), self._sum_of_halves()
        self._request = self._comm.Iallreduce(MPI.IN_PLACE, values, op=op)

    def is_done(self) -> bool:
        """Whether MPI has the sum."""
        return self._request.Test()

    def finish(self) -> torch.Tensor:
        """Wait for MPI."""
        wait_until(self._request.Test)
        return self._flat


def _add_halves(values: Any, sums: Any, _: Any) -> None:
    total = np.frombuffer(sums, np.float16)
    with np.errstate(over="ignore"):  # a sum beyond float16 is refused by name later
        total += np.frombuffer(values, np.float16)


class TorchReducer(Reducer):
    """torch.distributed: NCCL or XCCL on a device that has it, for sites without Horovod there."""

    name = "torch"

    def __init__(self, comm: MPI.Intracomm, backend: str) -> None:
        self.name = f"torch ({backend})"
        torch.distributed.init_process_group(
            backend, store=_shared_store(comm), rank=comm.rank, world_size=comm.size
        )
        self._work: torch.distributed.Work | None = None
        self._flat = torch.empty(0)

    def _start(self, flat: torch.Tensor) -> None:
        """Begin to sum, in a thread or on a stream of the library's."""
        self._flat = flat
        self._work = torch.distributed.all_reduce(flat, async_op=True)

    def is_done(self) -> bool:
        """Whether the library has the sum."""
        assert self._work is not None
        return self._work.is_completed()

    def finish(self) -> torch.Tensor:
        """Wait; on a device it is the computing stream that waits."""
        assert self._work is not None
        self._work.wait()
        return self._flat

    def close(self) -> None:
        """End the process group, and with it its threads."""
        torch.distributed.destroy_process_group()


def _shared_store(comm: MPI.Intracomm) -> Any:  # a Store of torch.distributed
    """Where the ranks of a stage find each other: on its first rank, at a port that is free."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in every torch

    host = comm.bcast(socket.gethostname())
    own = None
    if comm.rank == 0:
        own = TCPStore(host, 0, comm.size, is_master=True, wait_for_workers=False)
    port = comm.bcast(None if own is None else own.port)
    return own or TCPStore(host, port, comm.size, is_master=False)
