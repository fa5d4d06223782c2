"""Sum of dense gradients over the replicas of a stage.

The gradients of a stage live in one flat buffer, reduced as one tensor: how Horovod fuses several
tensors depends on timing, and with it the order of summation, so bits would not repeat; and small
layers would each pay its cycle time.
"""

from __future__ import annotations

import logging
import os
import socket
from abc import ABC, abstractmethod
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed
from mpi4py import MPI

from heterps_hpc.errors import UserError
from heterps_hpc.runtime.device import CPU, Device, HostCopy, Ready, collective_backend
from heterps_hpc.runtime.mpi_memory import takes_memory_of

log = logging.getLogger(__name__)


class Reducer(ABC):
    """Sums a tensor in place over a stage, and counts what is summed."""

    name: str
    num_bytes = 0  # handed over to be summed so far, by this rank
    num_sums = 0

    def start(self, flat: torch.Tensor) -> None:
        """Begin to sum; `flat` must not be touched until `finish`."""
        self.num_bytes += flat.nbytes
        self.num_sums += 1
        self._start(flat)

    @abstractmethod
    def _start(self, flat: torch.Tensor) -> None:
        """Begin to sum."""

    @abstractmethod
    def finish(self) -> torch.Tensor:
        """Wait until the sum is there; returns it, on the host if it is there too."""

    @abstractmethod
    def close(self) -> None:
        """Give resources back."""


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
        self._handle = self._hvd.allreduce_async_(flat, op=self._hvd.Sum, name="gradients")

    def finish(self) -> torch.Tensor:
        """Wait for Horovod's thread."""
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
    """MPI_Allreduce, in a device's memory if MPI takes it; needs no Horovod."""

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
            self._comm.Allreduce(MPI.IN_PLACE, self._flat, op=MPI.SUM)
            return self._flat
        # MPI knows no half: it carries them as other numbers of two bytes, and the host adds
        halves = self._flat.cpu()
        self._op = self._op or MPI.Op.Create(_add_halves, commute=True)
        self._comm.Allreduce(MPI.IN_PLACE, halves.numpy().view(np.uint16), op=self._op)
        return self._flat.copy_(halves)

    def close(self) -> None:
        """Give back what sums halves."""
        if self._op is not None:
            self._op.Free()


def _add_halves(values: Any, sums: Any, _: Any) -> None:
    total = np.frombuffer(sums, np.float16)
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

    def finish(self) -> torch.Tensor:
        """Wait; on a device it is the computing stream that waits."""
        assert self._work is not None
        self._work.wait()
        return self._flat

    def close(self) -> None:
        """End the process group, and with it its threads."""
        torch.distributed.destroy_process_group()


class HostReducer(Reducer):
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

    def _start(self, flat: torch.Tensor) -> None:
        """Begin to copy to the host."""
        if self._host is None:
            self._host = self._device.buffer(1, flat.numel(), flat.dtype)[0]
        self._flat = flat
        self._copy = HostCopy(self._host, self._device.download(flat, self._host))

    def finish(self) -> torch.Tensor:
        """Sum there, and begin to copy back; the update waits for that on the device."""
        assert self._copy is not None
        assert self._flat is not None
        host = self._copy.tensor()
        self._inner.start(host)
        self._inner.finish()
        self._flat.copy_(host, non_blocking=True)
        return host

    def close(self) -> None:
        """Give back what the inner one has."""
        self._inner.close()


class HalfReducer(Reducer):
    """Sums in float16, half the bytes, as Horovod's `Compression.fp16` does.

    Gradients of a mean are small, and float16 has few numbers near zero: they are multiplied by a
    power of two, which is exact, so that magnitudes from 6e-8 to 64 keep eleven bits.
    """

    SCALE = 1024.0

    def __init__(self, inner: Reducer) -> None:
        self.name = f"{inner.name} in float16"
        self._inner = inner
        self._flat: torch.Tensor | None = None
        self._half: torch.Tensor | None = None

    def start(self, flat: torch.Tensor) -> None:
        """Round, and begin to sum."""
        self._start(flat)
        self.num_bytes, self.num_sums = self._inner.num_bytes, self._inner.num_sums

    def _start(self, flat: torch.Tensor) -> None:
        if self._half is None:
            self._half = torch.empty_like(flat, dtype=torch.float16)
        self._flat = flat
        self._half.copy_(flat.mul_(self.SCALE))
        self._inner.start(self._half)

    def finish(self) -> torch.Tensor:
        """Wait, and put the sum where the gradients were; all ranks have the same one."""
        assert self._flat is not None
        assert self._half is not None
        self._inner.finish()
        if not bool(torch.isfinite(self._half).all()):
            raise UserError(
                "a sum of dense gradients is not finite in float16, whose limit is "
                f"{torch.finfo(torch.float16).max / self.SCALE:.0f} here; set "
                "train.dense.compression to `none` (then a loss that is not a number is named)"
            )
        return self._flat.copy_(self._half).div_(self.SCALE)

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


def make_reducer(
    comm: MPI.Intracomm,
    name: ReducerName,
    device: Device,
    *,
    may_change: bool = False,
    halves: bool = False,
) -> Reducer:
    """The reducer of a stage, as all ranks agreed, summing in float16 if `halves`."""
    if comm.size == 1:
        return NoReducer()
    whole = _whole_reducer(comm, name, device, may_change=may_change)
    return HalfReducer(whole) if halves else whole


def _whole_reducer(
    comm: MPI.Intracomm, name: ReducerName, device: Device, *, may_change: bool
) -> Reducer:
    """All ranks of a stage sum on the device, or none does.

    If it `may_change`, a stage whose Horovod does not sum on its devices uses an MPI that does.
    """
    if name == "mpi":
        return _mpi_on_device(comm, device) or _on_host(MpiReducer(comm), device)
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


def _shared_store(comm: MPI.Intracomm) -> Any:  # a Store of torch.distributed
    """Where the ranks of a stage find each other: on its first rank, at a port that is free."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in every torch

    host = comm.bcast(socket.gethostname())
    own = None
    if comm.rank == 0:
        own = TCPStore(host, 0, comm.size, is_master=True, wait_for_workers=False)
    port = comm.bcast(None if own is None else own.port)
    return own or TCPStore(host, port, comm.size, is_master=False)
