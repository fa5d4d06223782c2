"""Heartbeats of one node's ranks, in memory that they share: one of them writes the node's file;
and the marks of ranks that wait for others to start.

Shared file systems suffer under many small writes, so ranks beat into a page of memory once a
second, and the first live rank of the node writes one small file every few seconds.
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

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.config import WatchSpec
from heterps_hpc.heartbeats import SILENT_FACTOR, Beat, NodeBeats
from heterps_hpc.layout import Layout
from heterps_hpc.phases import Phase
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.health.phase_timer import PhaseTimer

_SLOT = np.dtype(
    [
        ("rank", np.int64),
        ("pid", np.int64),
        ("step", np.int64),
        ("peer", np.int64),
        ("count", np.int64),
        ("pass_done", np.int64),
        ("pass_total", np.int64),
        ("at", np.float64),
        ("since", np.float64),
        ("phase", "S40"),
        ("steps", np.int64),
        ("training_seconds", np.float64),
        ("seconds", np.float64, len(Phase)),
    ]
)
_STALE_TICKS = 4.0


class NodeHeartbeats:
    """The heartbeats of this rank and of the others on its node."""

    def __init__(self, comm: MPI.Intracomm, layout: Layout, run_dir: RunDir, every: float) -> None:
        node = cast(MPI.Intracomm, comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank))
        self._index, size, first_rank = node.rank, node.size, node.bcast(comm.rank)
        self._slots: NDArray[np.void] = np.frombuffer(_share(node, size * _SLOT.itemsize), _SLOT)
        node.Barrier()
        node.Free()
        self._layout = layout
        self._host = os.uname().nodename
        # a machine may carry several nodes (containers, development clusters): with the first rank
        # their names differ
        self._name = f"{self._host}-{first_rank:05d}"
        self._path = run_dir.heartbeats / f"{self._name}.json"
        self._every = every
        self._tick_seconds = min(1.0, every / 4)
        self._written = 0.0
        mine = self._slots[self._index]
        mine["rank"], mine["pid"], mine["count"] = comm.rank, os.getpid(), -1
        mine["at"] = mine["since"] = time.time()

    def beat(self, timer: PhaseTimer) -> float:
        """Note that we live and what we do; returns since when nothing has changed."""
        mine = self._slots[self._index]
        now = time.time()
        if timer.count != mine["count"]:
            mine["since"], mine["count"] = now, timer.count
        mine["step"], mine["phase"] = timer.step, timer.current.encode()[:40]
        mine["peer"] = -1 if timer.peer is None else timer.peer
        if timer.first_step is not None:
            mine["steps"] = timer.step - timer.first_step
            mine["training_seconds"] = timer.training_seconds()
            mine["seconds"] = [timer.seconds.get(phase, 0.0) for phase in Phase]
        mine["pass_done"], mine["pass_total"] = timer.pass_batches
        mine["at"] = now
        if now - self._written >= self._every and self._is_writer(now):
            self.write()
        return float(mine["since"])

    def _is_writer(self, now: float) -> bool:
        """The first rank of the node that is alive: a stopped one must not silence the rest."""
        before = self._slots["at"][: self._index]
        return bool((now - before > _STALE_TICKS * self._tick_seconds).all())

    def write(self) -> None:
        """Write the node's file; a full disk or a vanished directory must not end the run."""
        self._written = time.time()
        node = NodeBeats(
            node=self._name,
            written_at=self._written,
            every_seconds=self._every,
            beats=tuple(self._beat(slot) for slot in self._slots if slot["pid"]),
        )
        # the thread that waited for a busy disk would be taken for silent
        write_atomically(self._path, node.model_dump_json() + "\n", durable=False)

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
            pass_done=int(slot["pass_done"]),
            pass_total=int(slot["pass_total"]),
            at=float(slot["at"]),
            since=float(slot["since"]),
            steps=int(slot["steps"]),
            training_seconds=float(slot["training_seconds"]),
            seconds={
                str(phase): round(float(seconds), 6)
                for phase, seconds in zip(Phase, slot["seconds"], strict=True)
                if seconds > 0
            },
        )


class StartMarks:
    """Which ranks wait for others that have not started: a file for each, touched now and then.

    A rank makes its file only when it has waited for half of what counts as a stall, so that an
    ordinary start costs the file system nothing.
    """

    def __init__(self, run_dir: RunDir, rank: int, num_ranks: int, spec: WatchSpec) -> None:
        self._folder = run_dir.heartbeats
        self._rank = rank
        self._num_ranks = num_ranks
        self._spec = spec
        self._count = -1
        self._since = time.time()

    def beat(self, count: int) -> float:
        """Note progress by a count that grows; returns since when it has not."""
        now = time.time()
        if count != self._count:
            self._count, self._since = count, now
        elif now - self._since > self._spec.stall_seconds / 2:
            self._path(self._rank).touch()
        return self._since

    def fresh(self) -> list[int]:
        """Ranks that wait as well; this one is among them."""
        recent = time.time() - max(SILENT_FACTOR * self._spec.heartbeat_seconds, 2.0)
        found = []
        for rank in range(self._num_ranks):
            try:
                if rank == self._rank or self._path(rank).stat().st_mtime > recent:
                    found.append(rank)
            except FileNotFoundError:
                continue
        return found

    def describe_missing(self) -> str:
        """One line for people."""
        here = set(self.fresh())
        missing = [str(rank) for rank in range(self._num_ranks) if rank not in here]
        if not missing:
            return "all ranks have started and wait for each other"
        return (
            f"rank {', '.join(missing)} did not start, or was stopped while starting: "
            f"{len(here)} of {self._num_ranks} ranks wait"
        )

    def remove(self) -> None:
        """All ranks are there."""
        self._path(self._rank).unlink(missing_ok=True)

    def _path(self, rank: int) -> Path:
        return self._folder / f"start-{rank:05d}"


def _share(node: MPI.Intracomm, num_bytes: int) -> mmap.mmap:
    """Memory that the ranks of a node share; its file is gone as soon as all have it."""
    folder = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    path = None
    if node.rank == 0:
        handle, name = tempfile.mkstemp(prefix="heterps-heartbeats-", dir=folder)
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
