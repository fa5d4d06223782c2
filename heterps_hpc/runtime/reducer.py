"""Sum of dense gradients over the replicas of a stage.

The gradients of a stage live in one flat buffer, reduced as one tensor: how Horovod fuses several
tensors depends on timing, and with it the order of summation, so bits would not repeat; and small
layers would each pay its cycle time.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import version
from typing import Literal, Protocol

import torch
from mpi4py import MPI

from heterps_hpc.errors import UserError

log = logging.getLogger(__name__)


class Reducer(Protocol):
    """Sums a tensor in place over a stage."""

    name: str

    def start(self, flat: torch.Tensor) -> None:
        """Begin to sum; `flat` must not be touched until `finish`."""

    def finish(self) -> None:
        """Wait until the sum is there."""

    def close(self) -> None:
        """Give resources back."""


class NoReducer:
    """A stage of one rank has nothing to sum."""

    name = "none"

    def start(self, flat: torch.Tensor) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class HorovodReducer:
    """Horovod's ring-allreduce over the stage's communicator."""

    name = "horovod"

    def __init__(self, comm: MPI.Intracomm) -> None:
        os.environ.setdefault("HOROVOD_CYCLE_TIME", str(_cycle_milliseconds()))
        import horovod.torch as hvd
        from horovod.torch import init  # not there if Horovod was built without torch

        self._hvd = hvd
        init(comm=comm)
        self._handle: int | None = None

    def start(self, flat: torch.Tensor) -> None:
        """Hand the buffer to Horovod's thread."""
        self._handle = self._hvd.allreduce_async_(flat, op=self._hvd.Sum, name="gradients")

    def finish(self) -> None:
        """Wait for Horovod's thread."""
        self._hvd.synchronize(self._handle)

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


class MpiReducer:
    """MPI_Allreduce, for machines where Horovod does not build, and for tests. CPU only."""

    name = "mpi"

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._flat: torch.Tensor | None = None

    def start(self, flat: torch.Tensor) -> None:
        """Remember the buffer; the work is done in `finish`."""
        self._flat = flat

    def finish(self) -> None:
        """Sum in place (through host memory if the buffer is on a device)."""
        assert self._flat is not None
        host = self._flat.cpu()
        self._comm.Allreduce(MPI.IN_PLACE, host.numpy(), op=MPI.SUM)
        if host is not self._flat:
            self._flat.copy_(host)

    def close(self) -> None:
        """Nothing to do."""


ReducerName = Literal["horovod", "mpi"]


def agree_on_reducer(
    comm: MPI.Intracomm, choice: Literal["auto", "horovod", "mpi"], *, reduces: bool
) -> ReducerName:
    """The reducer of all ranks; `auto` is Horovod where every rank that `reduces` can import it.

    Each rank deciding for itself would let some wait in Horovod for others that wait in MPI.
    """
    missing = _horovod_problem() if reduces and choice != "mpi" else None
    problems = {rank: why for rank, why in enumerate(comm.allgather(missing)) if why is not None}
    if choice == "mpi":
        return "mpi"
    if not problems:
        return "horovod"
    ranks = ", ".join(str(rank) for rank in problems)
    why = next(iter(problems.values()))
    if choice == "horovod":
        raise UserError(
            f"train.reducer is 'horovod', but it cannot be imported on rank {ranks} ({why}); build "
            "it there (make setup) or choose 'mpi'"
        )
    log.warning(
        "Horovod cannot be imported on rank %s (%s); all ranks sum with MPI_Allreduce", ranks, why
    )
    return "mpi"


def _horovod_problem() -> str | None:
    try:
        from horovod.torch import init  # noqa: F401  not there if Horovod was built without torch
    except ImportError as error:
        return str(error)
    return None


def make_reducer(comm: MPI.Intracomm, name: ReducerName) -> Reducer:
    """The reducer of a stage, as all ranks agreed."""
    if comm.size == 1:
        return NoReducer()
    return MpiReducer(comm) if name == "mpi" else HorovodReducer(comm)
