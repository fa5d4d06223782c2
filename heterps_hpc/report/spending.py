"""What the run of a report cost."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.rundir import RunDir
from heterps_hpc.spending import Attempt, PoolSpending, attempts, pool_spending, spent_besides


@dataclass(frozen=True)
class Spending:
    """What the run cost."""

    seconds: float
    source: str  # where the seconds come from, for people
    pools: tuple[PoolSpending, ...]
    besides: dict[str, float]  # $ for measuring, trials and scoring

    @property
    def money(self) -> float:
        """Dollars in all."""
        return sum(pool.money for pool in self.pools) + sum(self.besides.values())


def spending(run: RecordedRun) -> Spending | None:
    """What the allocated nodes cost, if prices and hours are known."""
    if run.cluster is None or run.layout is None:
        return None
    starts = attempts(run.events)
    allocated = sum(attempt.seconds for attempt in starts)
    source = "from start to end of the job, as its history has them"
    if allocated <= 0 and run.summary is not None:
        allocated = run.summary.seconds
        source = "from the first batch to the last; the history has no start and end"
        starts = [Attempt(0.0, allocated, None, 0, "")]
    if allocated <= 0:
        return None
    spent = pool_spending(run.cluster, run.layout, starts)
    besides = spent_besides(RunDir(run.path))
    return Spending(allocated, source, spent, besides) if spent else None
