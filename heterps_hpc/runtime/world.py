"""The world of a run: this rank's place in the layout, one communicator per use, and its end.

Libraries never share a communicator: a message of one could be taken by another.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

from mpi4py import MPI

from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout, RankLayout, Stage

# An abort can overtake what a rank wrote just before it: without this pause, MPICH's mpirun ended
# without the line in 6 of 40 runs with a wrong layout.
SECONDS_FOR_LAST_LINES = 1.0
_SECONDS_FOR_RANK_0 = 3.0


@dataclass(frozen=True)
class World:
    """Communicators and this rank's entry of the layout."""

    layout: Layout
    entry: RankLayout
    control: MPI.Intracomm  # all ranks: votes, barriers
    exchange: MPI.Intracomm  # all ranks: rows, activations and their gradients
    evaluation: MPI.Intracomm  # all ranks: the same while training messages are in flight
    stage: MPI.Intracomm  # ranks of this stage: the reducer
    dense: MPI.Intracomm  # ranks of all dense stages (on others: COMM_SELF)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.entry.rank

    @property
    def my_stage(self) -> Stage:
        """This rank's stage."""
        return self.layout.stages[self.entry.stage]

    def name(self) -> str:
        """Rank, role, stage and host, for logs and errors."""
        return (
            f"rank {self.rank} {self.entry.role} stage {self.entry.stage} on {os.uname().nodename}"
        )

    def free(self) -> None:
        """Free the communicators."""
        for comm in (self.dense, self.stage, self.evaluation, self.exchange, self.control):
            if comm != MPI.COMM_SELF:
                comm.Free()


def make_world(comm: MPI.Intracomm, layout: Layout) -> World:
    """Check that the world is the one the layout describes, and split it."""
    if comm.size != layout.num_ranks:
        raise UserError(
            f"the layout has {layout.num_ranks} ranks, MPI started {comm.size}; start as many "
            "(heterps launch does), or plan again"
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UserError(
            "MPI was started without MPI_THREAD_MULTIPLE, which Horovod needs; import mpi4py "
            "first, or use an MPI built with threads"
        )
    entry = layout.ranks[comm.rank]
    dense = _split(comm, 0 if entry.dense else MPI.UNDEFINED, comm.rank)
    return World(
        layout=layout,
        entry=entry,
        control=comm.Dup(),
        exchange=comm.Dup(),
        evaluation=comm.Dup(),
        stage=_split(comm, entry.stage, entry.replica),
        dense=dense if dense != MPI.COMM_NULL else MPI.COMM_SELF,
    )


def _split(comm: MPI.Intracomm, color: int, key: int) -> MPI.Intracomm:
    part = comm.Split(color, key)
    assert isinstance(part, MPI.Intracomm)  # mpi4py's stubs only promise a Comm
    return part


def end_world(comm: MPI.Intracomm, code: ExitCode, reason: str) -> NoReturn:
    """Print once what happened, then end all ranks: the others would wait forever for this one."""
    if code == ExitCode.USER_ERROR and comm.rank != 0:
        time.sleep(_SECONDS_FOR_RANK_0)  # most such errors are everyone's: let one rank print it
    sys.stderr.write(f"heterps: {reason}\n")
    sys.stderr.flush()
    time.sleep(SECONDS_FOR_LAST_LINES)
    comm.Abort(int(code))
    raise SystemExit(int(code))
