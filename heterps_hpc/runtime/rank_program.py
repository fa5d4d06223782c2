"""What all programs that ranks run have in common: log, threads, errors as exit codes, the end.

    mpirun -n N python -m mpi4py -m heterps_hpc.runtime[.predict|.measure.program|…] RUN_DIR

A program is a function of a `Start`. If it fails on one rank, that rank says so in one line and
ends all others, which would wait for it forever.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from mpi4py import MPI

from heterps_hpc import events
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.world import end_world

log = logging.getLogger(__name__)


class RankFailed(RuntimeError):
    """A rank cannot continue; the message names rank, role, stage, host, step and cause."""


@dataclass(frozen=True)
class Start:
    """What every rank program starts with."""

    comm: MPI.Intracomm  # the whole world
    run_dir: RunDir
    job: Job
    layout: Layout
    component: int | None  # as the launcher placed us


@dataclass(frozen=True)
class End:
    """How a program ended, the same on all ranks."""

    code: ExitCode = ExitCode.DONE
    reason: str | None = None


def run_program(work: Callable[[Start], End], arguments: Sequence[str]) -> int:
    """Run this rank's part of a program; the exit code says how it ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--component", type=int, default=None, help="as the launcher placed us")
    options = parser.parse_args(arguments)
    comm, run_dir = MPI.COMM_WORLD, RunDir(options.run_dir)
    _start_log(run_dir, comm.rank)
    try:
        job, layout = Job.parse_saved(run_dir.job), Layout.load(run_dir.layout)
        _set_threads(layout, comm.rank)
        end = work(Start(comm, run_dir, job, layout, options.component))
    except UserError as error:
        log.error("%s", error)
        _fail(comm, run_dir, End(ExitCode.USER_ERROR, str(error)))
    except Exception as error:
        log.exception("%s", error)
        _fail(comm, run_dir, End(ExitCode.RANK_FAILED, _describe(comm, error)))
    if end.code != ExitCode.DONE:
        _note(comm, run_dir, end)
        if end.reason is not None and comm.rank == 0:
            sys.stderr.write(f"heterps: {end.reason}\n")
        MPI.Finalize()  # all agreed on it: a code alone would make mpi4py abort the slower ranks
    return int(end.code)


def _fail(comm: MPI.Intracomm, run_dir: RunDir, end: End) -> NoReturn:
    """This rank alone cannot continue, so all are ended."""
    _note(comm, run_dir, end)
    end_world(comm, end.code, end.reason or "failed")


def _note(comm: MPI.Intracomm, run_dir: RunDir, end: End) -> None:
    ended = events.RankEnded(rank=comm.rank, code=int(end.code), reason=end.reason)
    events.record_if_possible(run_dir, ended)


def _describe(comm: MPI.Intracomm, error: Exception) -> str:
    if isinstance(error, RankFailed):
        return str(error)
    where = f"rank {comm.rank} on {os.uname().nodename}"
    return f"{where}: {type(error).__name__}: {error}"


def _set_threads(layout: Layout, rank: int) -> None:
    """As many threads as the rank has cores; ranks beyond the layout fill up the last component."""
    component = layout.components[layout.ranks[min(rank, layout.num_ranks - 1)].component]
    torch.set_num_threads(component.cores_per_rank)


def _start_log(run_dir: RunDir, rank: int) -> None:
    """To a file of its own, if the disk takes one; what ends the rank is printed as well."""
    logging.raiseExceptions = False  # a line that a full disk does not take is no traceback
    handler: logging.Handler
    try:
        run_dir.logs.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(run_dir.rank_log(rank), encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"heterps: rank {rank} has no log: {error.strerror}: {error.filename}\n")
        handler = logging.NullHandler()
    logging.basicConfig(
        handlers=[handler],
        level=logging.INFO,
        format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s",
        force=True,
    )
