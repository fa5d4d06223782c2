"""Trains a layout for some seconds, to see what it really does; nothing is saved.

    mpirun -n N python -m mpi4py -m heterps_hpc.runtime.measure.trial RUN_DIR

RUN_DIR holds a job and a layout. Rank 0 writes tried.json: the throughput after the start, which is
slower (caches are cold, rows are new); and summary.json, as training does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from heterps_hpc.dataset import Dataset
from heterps_hpc.profiling.measurement import Tried
from heterps_hpc.runtime.health.preflight import check_world
from heterps_hpc.runtime.metrics.summary import write_summary
from heterps_hpc.runtime.observer import Observer
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.rank_program import End, Start, run_program
from heterps_hpc.runtime.training import Training

START = 0.2  # of the time, which does not count


class TrialClock(Observer):
    """Ends training after so many seconds, and remembers when each step ended."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.moments: list[float] = []  # the first begin, then the end of every step

    def step_begins(self, step: int) -> None:
        """The first one starts the clock."""
        if not self.moments:
            self.moments.append(time.perf_counter())

    def step_ends(self, step: int) -> None:
        """Remember when."""
        self.moments.append(time.perf_counter())

    def wants_stop(self) -> bool:
        """When the time is up."""
        return bool(self.moments) and time.perf_counter() - self.moments[0] > self._seconds


def steady(moments: Sequence[float]) -> tuple[int, float]:
    """The first step that counts and the seconds of all steps from there; at least the last one."""
    after = moments[0] + START * (moments[-1] - moments[0])
    first = next(i for i, moment in enumerate(moments) if moment >= after)
    first = min(first, len(moments) - 2)
    return first, moments[-1] - moments[first]


def run_trial(start: Start) -> End:
    """Train until the time is up and write how fast it was."""
    job, layout = start.job, start.layout
    check_world(start.comm, layout, start.component, reducer=job.train.reducer)
    rank = Rank(start.comm, job, layout, Dataset.open(job.data.train))
    clock = TrialClock(job.plan.trial_seconds)
    training = Training(rank, observer=clock)
    begin = rank.step
    result = training.run()
    write_summary(rank, result, training.exchange, training.reducer, start.run_dir)
    if start.comm.rank == 0:
        first, seconds = steady(clock.moments)
        samples = sum(training.steps.num_rows(step) for step in range(begin + first, rank.step))
        tried = Tried(steps=rank.step - begin - first, seconds=seconds, samples=samples)
        tried.save(start.run_dir.tried)
    training.close()
    rank.close()
    return End()


if __name__ == "__main__":
    sys.exit(run_program(run_trial, sys.argv[1:]))
