"""The hearts of one node's ranks, in memory that they share: one of them writes the node's file.

Shared file systems suffer under many small writes, so ranks beat into a page of memory once a
second, and the first living rank of the node writes one small file every few seconds.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from pathlib import Path
from typing import cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from heterps_hpc.heartbeats import Beat, NodeBeats
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.validation import write_atomically

_SLOT = np.dtype(
    [
        ("rank", np.int64),
        ("pid", np.int64),
        ("step", np.int64),
        ("peer", np.int64),
        ("count", np.int64),
        ("at", np.float64),
        ("since", np.float64),
        ("phase", "S40"),
    ]
)
_STALE_TICKS = 4.0


class Hearts:
    """This rank's heart and those of its neighbours on the node."""

    def __init__(self, comm: MPI.Intracomm, layout: Layout, run_dir: RunDir, every: float) -> None:
        node = cast(MPI.Intracomm, comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank))
        self._index, size, first_rank = node.rank, node.size, node.bcast(comm.rank)
        self._slots: NDArray[np.void] = np.frombuffer(_share(node, size * _SLOT.itemsize), _SLOT)
        node.Barrier()
        node.Free()
        self._layout = layout
        self._host = os.uname().nodename
        # a machine may carry several nodes (containers, development clusters): the rank tells
        self._name = f"{self._host}-{first_rank:05d}"
        self._path = run_dir.heartbeats / f"{self._name}.json"
        self._every = every
        self.tick_seconds = min(1.0, every / 4)
        self._written = 0.0
        mine = self._slots[self._index]
        mine["rank"], mine["pid"], mine["count"] = comm.rank, os.getpid(), -1
        mine["at"] = mine["since"] = time.time()

    def beat(self, watch: PhaseTimer) -> float:
        """Say that we live and what we do; returns since when nothing has changed."""
        mine = self._slots[self._index]
        now = time.time()
        if watch.count != mine["count"]:
            mine["since"], mine["count"] = now, watch.count
        mine["step"], mine["phase"] = watch.step, watch.current.encode()[:40]
        mine["peer"] = -1 if watch.peer is None else watch.peer
        mine["at"] = now
        if now - self._written >= self._every and self._is_writer(now):
            self.write()
        return float(mine["since"])

    def _is_writer(self, now: float) -> bool:
        """The first rank of the node whose heart beats: a stopped one must not silence the rest."""
        before = self._slots["at"][: self._index]
        return bool((now - before > _STALE_TICKS * self.tick_seconds).all())

    def write(self) -> None:
        """Write the node's file; a full disk or a vanished directory must not end the run."""
        self._written = time.time()
        node = NodeBeats(
            node=self._name,
            written_at=self._written,
            every_seconds=self._every,
            beats=tuple(self._beat(slot) for slot in self._slots if slot["pid"]),
        )
        write_atomically(self._path, node.model_dump_json() + "\n")

    def _beat(self, slot: np.void) -> Beat:
        entry = self._layout.ranks[int(slot["rank"])]
        return Beat(
            rank=entry.rank,
            role=entry.role,
            stage=entry.stage,
            host=self._host,
            pid=int(slot["pid"]),
            step=int(slot["step"]),
            phase=bytes(slot["phase"]).decode(errors="replace"),
            peer=None if slot["peer"] < 0 else int(slot["peer"]),
            at=float(slot["at"]),
            since=float(slot["since"]),
        )


def _share(node: MPI.Intracomm, num_bytes: int) -> mmap.mmap:
    """Memory that the ranks of a node share; its file is gone as soon as all have it."""
    folder = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    path = None
    if node.rank == 0:
        handle, name = tempfile.mkstemp(prefix="heterps-hearts-", dir=folder)
        os.ftruncate(handle, num_bytes)
        os.close(handle)
        path = Path(name)
    path = node.bcast(path)
    assert path is not None
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), num_bytes)
    node.Barrier()
    if node.rank == 0:
        path.unlink()
    return memory
