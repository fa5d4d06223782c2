"""A rank's accelerator: the only module that asks torch for devices, streams and their memory.

Any accelerator that torch knows will do (`cuda`, which ROCm is too, `xpu`, a plugin's): all
questions go through `torch.accelerator` and the device's own module.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch

from heterps_hpc.errors import UserError

if TYPE_CHECKING:
    from mpi4py import MPI

CPU = "cpu"


@dataclass(frozen=True)
class Visible:
    """The devices that one rank sees, by names that differ where the devices do."""

    node: str
    devices: tuple[str, ...] = ()


def node_name() -> str:
    """This rank's node; Slurm's own name where it gives one."""
    return os.environ.get("SLURMD_NODENAME", platform.node())


def visible_devices(kind: str) -> tuple[str, ...]:
    """Devices of a kind that this process sees; none where torch cannot use any."""
    if kind == CPU or not torch.accelerator.is_available():
        return ()
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != kind:
        return ()
    return tuple(_identity(kind, index) for index in range(torch.accelerator.device_count()))


def own_index(ranks: Sequence[Visible], rank: int) -> int:
    """Which of the devices that a rank sees is its own: ranks that see the same ones take turns.

    May be past the last device, if a node has more ranks than devices: two ranks never share one.
    """
    mine = ranks[rank]
    return sum(other == mine for other in ranks[:rank])


def device_problem(kind: str, ranks: Sequence[Visible], rank: int) -> str | None:
    """Why a rank gets no device of its own, in one line."""
    index, seen = own_index(ranks, rank), ranks[rank]
    if index < len(seen.devices):
        return None
    return (
        f"would take {kind} device {index} of {seen.node} but sees {len(seen.devices)}; ask for "
        f"more (`gpus_per_node`, `slurm.gres`), or install a torch that supports {kind}"
    )


def choose_device(comm: MPI.Intracomm, kind: str, who: str) -> torch.device:
    """This rank's device; called by all ranks of `comm`, which holds all that share nodes."""
    ranks = comm.allgather(Visible(node_name(), visible_devices(kind)))
    if kind == CPU:
        return torch.device(CPU)
    problem = device_problem(kind, ranks, comm.rank)
    if problem is not None:
        raise UserError(f"{who}: {problem}")
    index = own_index(ranks, comm.rank)
    torch.accelerator.set_device_index(index)
    return torch.device(kind, index)


def _identity(kind: str, index: int) -> str:
    """A device's own name where the driver gives it one: ranks may each see another `cuda:0`."""
    return _property(kind, index, "uuid") or f"{kind}:{index}"


def _property(kind: str, index: int, name: str) -> str | None:
    properties = getattr(torch.get_device_module(kind), "get_device_properties", None)
    value = getattr(properties(index), name, None) if properties is not None else None
    return None if value is None else str(value)


class Ready(Protocol):
    """Something that will have happened: an event of a device."""

    def query(self) -> bool:
        """Whether it has happened."""

    def synchronize(self) -> None:
        """Block the host until it has."""


class Mark(Ready, Protocol):
    """A point in a rank's work, for taking times."""

    def elapsed_time(self, end: Self, /) -> float:
        """Milliseconds from here to a later mark; both have passed."""


class HostMark:
    """A point in the host's time, with the interface of a device's event."""

    def __init__(self) -> None:
        self._seconds = time.perf_counter()

    def query(self) -> bool:
        """It is in the past."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end: HostMark, /) -> float:
        """Milliseconds from here to a later mark."""
        return (end._seconds - self._seconds) * 1e3


class HostCopy:
    """A tensor on its way to the host; waited for when its values are needed, not before."""

    def __init__(self, tensor: torch.Tensor, ready: Ready | None = None) -> None:
        self._tensor = tensor
        self._ready = ready

    def is_here(self) -> bool:
        """Whether the values can be read without waiting."""
        return self._ready is None or self._ready.query()

    def tensor(self) -> torch.Tensor:
        """The values, on the host."""
        if self._ready is not None and not self._ready.query():
            self._ready.synchronize()
        self._ready = None
        return self._tensor

    def __float__(self) -> float:
        return float(self.tensor())


class Device:
    """Copies between the host and a rank's device, alongside the stream that computes.

    Uploads and downloads have a stream each: an upload must not queue behind a download that
    waits for a computation. On the host nothing is copied, so the same code serves both.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_host = device.type == CPU
        if not self.is_host:
            self._uploads = torch.Stream(device=device)
            self._downloads = torch.Stream(device=device)
        self.has_timed_events = not self.is_host and _has_timed_events(device)

    def buffer(self, num_rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory for messages: zeros, pinned where a device copies from or to it."""
        memory = torch.zeros(num_rows, width, dtype=dtype)
        return memory if self.is_host else memory.pin_memory()

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """A host tensor on the device; the computation waits for it, the host does not.

        From pageable memory, which a device cannot read by itself, it goes through a pinned copy.
        """
        if self.is_host:
            return host
        source = host if host.is_pinned() else host.pin_memory()
        with self._uploads:
            there = source.to(self.device, non_blocking=True)
        computing = torch.accelerator.current_stream(self.device)
        computing.wait_stream(self._uploads)
        there.record_stream(computing)
        return there

    def uploaded(self) -> Ready | None:
        """When all uploads until now are done, and their host memory is free again."""
        return None if self.is_host else self._uploads.record_event()

    def download(self, there: torch.Tensor, host: torch.Tensor) -> Ready | None:
        """Copy to host memory; done when what is returned says so (at once, if nothing is)."""
        if self.is_host:
            host.copy_(there)
            return None
        self._downloads.wait_stream(torch.accelerator.current_stream(self.device))
        with self._downloads:
            host.copy_(there, non_blocking=True)
        there.record_stream(self._downloads)
        return self._downloads.record_event()

    def computed(self) -> Ready | None:
        """When all that was started on the device until now is computed."""
        if self.is_host:
            return None
        return torch.accelerator.current_stream(self.device).record_event()

    def mark(self) -> Mark:
        """This point in the rank's work: of what the device computes where it has timed events,
        else of what the host does."""
        return _timed_event(self.device) if self.has_timed_events else HostMark()

    def to_host(self, there: torch.Tensor) -> HostCopy:
        """Begin to bring a small tensor to the host."""
        if self.is_host:
            return HostCopy(there.clone())  # its memory may be used again before it is read
        host = torch.empty(there.shape, dtype=there.dtype).pin_memory()
        return HostCopy(host, self.download(there, host))


def _timed_event(device: torch.device) -> Any:
    event = torch.Event(device, enable_timing=True)
    event.record(torch.accelerator.current_stream(device))
    return event


def _has_timed_events(device: torch.device) -> bool:
    """Whether events of a device measure time: not those of every plugin do."""
    try:
        begin, end = _timed_event(device), _timed_event(device)
        end.synchronize()
        return bool(begin.elapsed_time(end) >= 0)
    except (RuntimeError, NotImplementedError, TypeError):
        return False


def collective_backend(device: torch.device) -> str | None:
    """The backend of torch.distributed that sums in a device's own memory, if torch has one."""
    distributed = torch.distributed
    if not distributed.is_available():
        return None
    has = {
        CPU: distributed.is_gloo_available(),
        "cuda": distributed.is_nccl_available(),
        "xpu": distributed.is_xccl_available(),
    }
    return distributed.get_default_backend_for_device(device) if has.get(device.type) else None


def has_fused(optimizer: str, device: torch.device) -> bool:
    """Whether torch has a fused kernel of an optimizer for a device."""
    return optimizer != "adagrad" or device.type in (CPU, "cuda")


def computes_in_bf16(device: torch.device) -> bool:
    """Whether a device can; autocast of one that cannot only warns, and computes in float32."""
    if device.type == CPU:
        return True
    module = torch.get_device_module(device.type)
    says = getattr(module, "is_bf16_supported", None)
    listed = getattr(module, "get_amp_supported_dtype", list)  # a plugin's way
    return bool(says() if says is not None else torch.bfloat16 in listed())


def accelerators() -> str:
    """What torch sees on this machine, for people."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        return "no accelerator"
    count = torch.accelerator.device_count()
    names = Counter(_model_name(found.type, index) for index in range(count))
    listed = ", ".join(f"{number} × {name}" for name, number in names.items() if name)
    return f"{count} {found.type} devices" + (f" ({listed})" if listed else "")


def describe(device: torch.device) -> str:
    """A device's name for people."""
    if device.type == CPU:
        return CPU
    name = _model_name(device.type, device.index)
    return f"{device.type}:{device.index}" + (f" ({name})" if name else "")


def _model_name(kind: str, index: int) -> str | None:
    """What the maker calls a device, where its driver says so."""
    return _property(kind, index, "name")


@contextlib.contextmanager
def explain_out_of_memory(who: str, device: torch.device) -> Iterator[None]:
    """One line instead of an allocator's report: who, how much, what to change."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        first = str(error).splitlines()[0]
        used = total = 0
        if device.type != CPU:
            free, total = torch.accelerator.get_memory_info(device)
            used = total - free
        raise UserError(
            f"{who}: {device} is out of memory with {used:,} of {total:,} bytes in use ({first}); "
            "use more micro-batches (train.micro_batches), a smaller train.batch_size, or plan "
            "with more ranks for this stage"
        ) from None
