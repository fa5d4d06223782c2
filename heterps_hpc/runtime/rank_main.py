"""One rank from start to end: logs, checks, training, exit code."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

import torch
from mpi4py import MPI

from heterps_hpc import history
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.device import describe
from heterps_hpc.runtime.ending import end_world
from heterps_hpc.runtime.health.preflight import preflight
from heterps_hpc.runtime.health.watchdog import Watch
from heterps_hpc.runtime.metrics.summary import write_summary
from heterps_hpc.runtime.signals import StopFlag
from heterps_hpc.runtime.state.begin import begin
from heterps_hpc.runtime.state.saver import Saver
from heterps_hpc.runtime.training import Trainer

log = logging.getLogger(__name__)


class RankFailed(RuntimeError):
    """A rank cannot go on; the message says rank, role, stage, host, step and cause."""


def main(arguments: list[str]) -> int:
    """Run this rank's part; the exit code says how it ended."""
    options = _parse(arguments)
    comm = MPI.COMM_WORLD
    run_dir = RunDir(options.run_dir)
    _start_log(run_dir, comm.rank)
    try:
        code, reason = _run(comm, run_dir, options), None
    except UserError as error:
        log.error("%s", error)
        code, reason = ExitCode.USER_ERROR, str(error)
    except Exception as error:
        log.exception("%s", error)
        code, reason = ExitCode.RANK_FAILED, _describe(comm, error)
    if code != ExitCode.DONE:
        history.record(run_dir, "rank_end", rank=comm.rank, code=int(code), reason=reason)
    if reason is not None:
        end_world(comm, code, reason)
    if code == ExitCode.STOPPED:
        MPI.Finalize()  # all agreed to stop: a code alone would make mpi4py abort the slower ranks
    return int(code)


def _run(comm: MPI.Intracomm, run_dir: RunDir, options: argparse.Namespace) -> ExitCode:
    job = Job.parse_saved(run_dir.job)
    layout = Layout.load(run_dir.layout)
    _set_threads(layout, comm.rank)
    with StopFlag() as stop:
        preflight(comm, layout, job, options.component, run_dir)
        trainer = Trainer(comm, job, layout, run_dir)
        try:
            return _train(trainer, run_dir, stop)
        except UserError:
            raise
        except Exception as error:
            raise RankFailed(
                f"{trainer.world.name()}, step {trainer.watch.step}, phase "
                f"{trainer.watch.current!r}: {type(error).__name__}: {error}"
            ) from error


def _train(trainer: Trainer, run_dir: RunDir, stop: StopFlag) -> ExitCode:
    """Begin where an interrupted run was, or anew; watch and save while training."""
    comm = trainer.world.control
    log.info(
        "%s of %d, layers %s, device %s, reducer %s",
        trainer.world.name(),
        comm.size,
        ", ".join(trainer.world.my_stage.layers),
        describe(trainer.parts.device.device),
        trainer.reducer.name,
    )
    with Watch(comm, trainer.world.layout, run_dir, trainer.job.watch, trainer.watch):
        begin(trainer, run_dir)
        trainer.saver = Saver(trainer, run_dir, stop)
        result = trainer.run()
        write_summary(trainer, result, run_dir)
        trainer.close()
    return ExitCode.STOPPED if result.stopped else ExitCode.DONE


def _describe(comm: MPI.Intracomm, error: Exception) -> str:
    if isinstance(error, RankFailed):
        return str(error)
    where = f"rank {comm.rank} on {os.uname().nodename}, before training"
    return f"{where}: {type(error).__name__}: {error}"


def _set_threads(layout: Layout, rank: int) -> None:
    if rank < layout.num_ranks:
        component = layout.components[layout.ranks[rank].component]
        torch.set_num_threads(component.cores_per_rank)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="heterps_hpc.runtime", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--component", type=int, default=None, help="as the launcher placed us")
    return parser.parse_args(arguments)


def _start_log(run_dir: RunDir, rank: int) -> None:
    run_dir.logs.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=run_dir.rank_log(rank),
        level=logging.INFO,
        format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s",
        force=True,
    )
