"""Money really spent: allocated hours, as the launcher's history has them, times prices."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from heterps_hpc.events import Ended, Line, Started
from heterps_hpc.report.inputs import Run


@dataclass(frozen=True)
class Attempt:
    """One start of the job: the nodes were ours from `began` to `ended`."""

    began: float
    ended: float
    code: int | None  # None: it left no end, so that it was killed from outside, or still runs
    restart: int
    launcher: str

    @property
    def seconds(self) -> float:
        """How long the nodes were allocated."""
        return max(0.0, self.ended - self.began)


@dataclass(frozen=True)
class PoolSpending:
    """What one pool's nodes cost."""

    pool: str
    num_ranks: int
    num_nodes: int
    billing: str
    price_per_hour: float
    node_hours: float
    money: float


@dataclass(frozen=True)
class Spending:
    """What the run cost."""

    seconds: float
    source: str  # where the seconds come from, for people
    pools: tuple[PoolSpending, ...]

    @property
    def money(self) -> float:
        """Dollars in all."""
        return sum(pool.money for pool in self.pools)


def seconds_since_epoch(time: object) -> float | None:
    """A moment of the history: a number, or an ISO 8601 text."""
    if isinstance(time, int | float):
        return float(time)
    if isinstance(time, str):
        try:
            return datetime.fromisoformat(time).timestamp()
        except ValueError:
            return None
    return None


def attempts(events: list[Line]) -> list[Attempt]:
    """Pair starts with ends; a start without an end lasted until the last thing heard of it."""
    found: list[Attempt] = []
    opened: Line | None = None
    heard = 0.0
    for event in events:
        moment = seconds_since_epoch(event.get("time"))
        if moment is None:
            continue
        if event["event"] == Started.kind:
            if opened is not None:
                found.append(_attempt(opened, heard, None))
            opened = event
        elif event["event"] == Ended.kind and opened is not None:
            found.append(_attempt(opened, moment, event.get("code", event.get("exit_code"))))
            opened = None
        heard = moment
    if opened is not None:
        found.append(_attempt(opened, heard, None))
    return found


def _attempt(start: Line, ended: float, code: object) -> Attempt:
    began = seconds_since_epoch(start["time"])
    assert began is not None
    restart = start.get("restart", 0)
    return Attempt(
        began,
        ended,
        code if isinstance(code, int) else None,
        restart if isinstance(restart, int) else 0,
        str(start.get("launcher", "")),
    )


def spending(run: Run) -> Spending | None:
    """What the allocated nodes cost, if prices and hours are known."""
    if run.cluster is None or run.layout is None:
        return None
    allocated = sum(attempt.seconds for attempt in attempts(run.events))
    source = "from start to end of the job, as its history has them"
    if allocated <= 0 and run.summary is not None:
        allocated, source = run.summary.seconds, "training only; the history has no start and end"
    if allocated <= 0:
        return None
    pools = {pool.name: pool for pool in run.cluster.pools}
    hours = allocated / 3600
    spent = [
        PoolSpending(
            component.pool,
            component.num_ranks,
            component.num_nodes,
            pool.billing,
            pool.price_per_hour,
            hours * component.num_nodes,
            hours * pool.hourly_price(component.num_ranks),
        )
        for component in run.layout.components
        if (pool := pools.get(component.pool)) is not None
    ]
    return Spending(allocated, source, tuple(spent)) if spent else None
