"""The training program of one rank: check the world, begin where the run is, train, summarise."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.runtime.health.preflight import preflight
from heterps_hpc.runtime.health.watchdog import Watchdog
from heterps_hpc.runtime.metrics.summary import write_summary
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.rank_program import RankFailed, Start, run_program
from heterps_hpc.runtime.state.begin import begin
from heterps_hpc.runtime.state.saver import Saver
from heterps_hpc.runtime.training import Training
from heterps_hpc.runtime.votes import StopFlag

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Train; the exit code says how it ended."""
    return run_program(_run, arguments)


def _run(start: Start) -> ExitCode:
    with StopFlag().installed() as stop:
        preflight(start.comm, start.layout, start.job, start.component, start.run_dir)
        dataset = Dataset.open(start.job.data.train)
        rank = Rank(start.comm, start.job, start.layout, dataset)
        try:
            return _train(rank, start, stop)
        except UserError:
            raise
        except Exception as error:
            raise RankFailed(
                f"{rank.world.name()}, step {rank.timer.step}, phase "
                f"'{rank.timer.current}': {type(error).__name__}: {error}"
            ) from error


def _train(rank: Rank, start: Start, stop: StopFlag) -> ExitCode:
    """Begin where an interrupted run was, or at step 0; save and be watched while training."""
    world, run_dir = rank.world, start.run_dir
    with Watchdog(world.control, world.layout, run_dir, rank.job.watch, rank.timer):
        begin(rank, run_dir)
        saver = Saver(rank, run_dir, stop)
        training = Training(rank, run_dir, saver=saver)
        log.info(
            "%s of %d, layers %s, reducer %s",
            world.name(),
            world.control.size,
            ", ".join(world.my_stage.layers),
            training.reducer.name,
        )
        result = training.run()
        write_summary(rank, result, training.exchange, training.reducer.name, run_dir)
        training.close()
        rank.close()
    return ExitCode.STOPPED if result.stopped else ExitCode.DONE
