"""What a rank finds when it starts, as one line of JSON; `heterps doctor` runs it under mpirun.

Each is looked up by itself, so that one broken library does not hide the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

Info = dict[str, str | int | bool | None]


def mpi_info() -> Info:
    """World, library and thread level."""
    from mpi4py import MPI

    levels = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    world = MPI.COMM_WORLD
    return {
        "mpi_library": " ".join(MPI.Get_library_version().split("\n")[0].strip("\0").split()),
        "mpi_threads": levels.get(MPI.Query_thread(), "unknown"),
        "mpi_size": world.size,
        "mpi_rank": world.rank,
        "mpi_sum": world.allreduce(world.rank + 1),
    }


def torch_info() -> Info:
    """torch, and the accelerators that it sees."""
    import torch

    from heterps_hpc.runtime.device import accelerators

    return {
        "torch": torch.__version__,
        "devices": accelerators(),
    }


def horovod_info() -> Info:
    """Horovod, and what it was built with."""
    import horovod
    from horovod.torch import gloo_built, mpi_built, nccl_built  # not there if built without torch

    parts = {"MPI": mpi_built(), "NCCL": nccl_built(), "Gloo": gloo_built()}
    return {
        "horovod": horovod.__version__,
        "horovod_parts": ", ".join(name for name, built in parts.items() if built),
        "horovod_mpi": bool(parts["MPI"]),
    }


def hdf5_info() -> Info:
    """h5py and its HDF5."""
    import h5py
    import hdf5plugin

    return {
        "h5py": h5py.__version__,
        "hdf5": h5py.version.hdf5_version,
        "hdf5plugin": hdf5plugin.version,
    }


def core_info() -> Info:
    """The C++ tables, and the instruction set that they chose."""
    from heterps_hpc import core

    table = core.Table(core.TableConfig(dim=4, name="probe"))
    return {"core_isa": table.isa}


PARTS: tuple[Callable[[], Info], ...] = (
    mpi_info,
    torch_info,
    horovod_info,
    hdf5_info,
    core_info,
)


def look() -> Info:
    """All that was found; a part that fails is reported as `error_NAME`."""
    info: Info = {}
    for part in PARTS:
        try:
            info |= part()
        except Exception as error:
            name = part.__name__.removesuffix("_info")
            info[f"error_{name}"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return info


def main() -> int:
    """Every rank writes its line in one piece; they may arrive in any order."""
    sys.stdout.write(json.dumps(look()) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
