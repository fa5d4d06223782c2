"""Whether this MPI can be given a device's memory: it says so itself, in one of two ways.

Since MPI 4.1 the world's info has the key `mpi_memory_alloc_kinds`, such as
`mpi,system,cuda:device`. Older Open MPI and MPICH have a function per kind of device.
"""

from __future__ import annotations

import ctypes

import torch
from mpi4py import MPI

_FUNCTIONS = {
    "cuda": ("MPIX_Query_cuda_support",),
    "rocm": ("MPIX_Query_rocm_support", "MPIX_Query_hip_support"),  # Open MPI; MPICH
    "level_zero": ("MPIX_Query_ze_support",),
}


def takes_memory_of(device: torch.device) -> bool:
    """Whether MPI can send from and sum in the memory of a device."""
    kind = _memory_kind(device)
    return kind is not None and (kind in _listed_kinds() or _function_says_so(kind))


def _memory_kind(device: torch.device) -> str | None:
    """MPI's name for a device's memory; torch calls AMD's devices `cuda` too."""
    if device.type == "cuda":
        return "cuda" if torch.version.hip is None else "rocm"
    return "level_zero" if device.type == "xpu" else None


def _listed_kinds() -> set[str]:
    info = MPI.COMM_WORLD.Get_info()
    listed = info.Get("mpi_memory_alloc_kinds") or ""
    info.Free()
    kinds = (entry.strip().split(":") for entry in listed.split(","))
    return {kind for kind, *limits in kinds if not limits or "device" in limits}


def _function_says_so(kind: str) -> bool:
    library = ctypes.CDLL(MPI.__file__)  # and all that it is linked with
    found = [getattr(library, name, None) for name in _FUNCTIONS[kind]]
    return any(function is not None and function() == 1 for function in found)
