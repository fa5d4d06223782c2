"""The shared memory by which MPICH moves messages within a node: ranks that are killed leave none.

MPICH removes its file when ranks finalise, which killed ones never do, and files in /dev/shm are
memory. Once all ranks have mapped it, the file needs no name any more.
"""

from __future__ import annotations

from pathlib import Path

_PREFIX = "/dev/shm/mpich_shm_"


def unlink_mpi_memory() -> None:
    """Call it after a message from every rank of the node: each has mapped the file by then."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as file:
        mapped = {line.split(maxsplit=5)[-1].rstrip("\n") for line in file if _PREFIX in line}
    for name in mapped:  # a peer may have been faster; then it ends in "(deleted)"
        Path(name).unlink(missing_ok=True)
