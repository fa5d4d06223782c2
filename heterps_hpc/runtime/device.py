"""Which accelerator a rank has: the only module that asks torch for devices.

Any accelerator that torch knows will do (`cuda`, which ROCm is too, `xpu`, a plugin's): all
questions go through `torch.accelerator` and the device's own module.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from mpi4py import MPI

from heterps_hpc.errors import UserError

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
    module = torch.get_device_module(kind)
    describe = getattr(module, "get_device_properties", None)
    uuid = getattr(describe(index), "uuid", None) if describe is not None else None
    return f"{kind}:{index}" if uuid is None else str(uuid)
