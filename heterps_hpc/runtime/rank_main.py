"""The training program of one rank: check the world, begin where the run is, train, summarise."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from heterps_hpc import events
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.phases import Phase
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.device import describe
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.health.preflight import check_world, preflight
from heterps_hpc.runtime.health.watchdog import Watchdog
from heterps_hpc.runtime.metrics.summary import write_summary
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.rank_program import End, RankFailed, Start, run_program
from heterps_hpc.runtime.state.begin import begin
from heterps_hpc.runtime.state.saver import SaveFailed, Saver
from heterps_hpc.runtime.training import Result, Training
from heterps_hpc.runtime.votes import StopFlag

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Train; the exit code says how it ended."""
    return run_program(_run, arguments)


def _run(start: Start) -> End:
    """The watchdog is first: a rank that is stopped in any of this would never be noticed."""
    comm, layout, job, run_dir = start.comm, start.layout, start.job, start.run_dir
    timer = PhaseTimer(comm.rank)
    watchdog = Watchdog(comm.rank, layout, run_dir, job.watch, timer)
    with StopFlag().installed() as stop, watchdog.running():
        try:
            with timer.phase(Phase.CHECK):
                info = check_world(comm, layout, start.component, reducer=job.train.reducer)
                watchdog.share_heartbeats(comm)
                preflight(comm, layout, job, info, run_dir)
            with timer.phase(Phase.BUILD):
                rank = Rank(comm, job, layout, Dataset.open(job.data.train), timer=timer)
            with timer.phase(Phase.RESTORE):
                begin(rank, run_dir)
            return _train(rank, run_dir, stop)
        except UserError:
            raise
        except Exception as error:
            entry = layout.ranks[comm.rank]
            raise RankFailed(
                f"rank {entry.rank} {entry.role} stage {entry.stage} on {os.uname().nodename}, "
                f"step {timer.step}, phase '{timer.current}': {type(error).__name__}: {error}"
            ) from error


def _train(rank: Rank, run_dir: RunDir, stop: StopFlag) -> End:
    """Train from where the rank is to the end of its job; save meanwhile."""
    with rank.timer.phase(Phase.BUILD):
        training = Training(rank, run_dir, saver=Saver(rank, run_dir, stop))
    log.info(
        "%s of %d, layers %s, device %s, reducer %s",
        rank.world.name(),
        rank.world.control.size,
        ", ".join(rank.world.my_stage.layers),
        describe(rank.device.device),
        training.reducer.name,
    )
    if rank.world.rank == 0:
        began = events.TrainingBegan(step=rank.step, total_steps=training.steps.total)
        events.record_if_possible(run_dir, began)
    result = training.run()
    write_summary(rank, result, training.exchange, training.reducer, run_dir)
    training.close()
    rank.close()
    return _end(result)


def _end(result: Result) -> End:
    """A run whose last state is not saved is not done."""
    if result.not_saved is not None and result.stopped:
        raise SaveFailed(result.not_saved)
    if result.not_saved is not None:
        return End(
            ExitCode.NOT_SAVED,
            f"trained to the end, but its last state is not saved: {result.not_saved}; free some "
            "space and continue with --resume",
        )
    return End(ExitCode.STOPPED if result.stopped else ExitCode.DONE)
