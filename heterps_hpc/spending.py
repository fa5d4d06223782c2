"""Money spent: allocated hours, as a run's history has them, times the prices of its pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.errors import UserError
from heterps_hpc.events import Ended, Launched, Line, PlannedAgain, Started, read_lines
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir


@dataclass(frozen=True)
class Attempt:
    """One start of the job: the nodes were ours from `began` to `ended`."""

    began: float
    ended: float
    code: int | None  # None: it left no end, so that it was killed from outside, or still runs
    restart: int
    launcher: str
    ranks: dict[str, int] | None = None  # by pool; None: those of the layout

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


def seconds_since_epoch(time: object) -> float | None:
    """A moment of the history: a number, or an ISO 8601 text."""
    try:
        if isinstance(time, int | float):
            return float(time) if math.isfinite(time) else None
        return datetime.fromisoformat(time).timestamp() if isinstance(time, str) else None
    except (ValueError, OverflowError):
        return None


def attempts(events: Sequence[Line], running_until: float | None = None) -> list[Attempt]:
    """Pair starts with ends.

    A start without an end lasted until the last thing heard of it; the newest one until
    `running_until`, if it still runs.
    """
    found: list[Attempt] = []
    opened: Line | None = None
    ranks: dict[str, int] | None = None
    heard = 0.0
    for event in events:
        moment = seconds_since_epoch(event.get("time"))
        if moment is None:
            continue
        if event["event"] == Started.kind:
            if opened is not None:
                found.append(_attempt(opened, heard, None, ranks))
            opened = event
        elif event["event"] in (Launched.kind, PlannedAgain.kind):
            ranks = _ranks_by_pool(event.get("ranks"))
        elif event["event"] == Ended.kind and opened is not None:
            code = event.get("code", event.get("exit_code"))
            found.append(_attempt(opened, moment, code, ranks))
            opened = None
        heard = moment
    if opened is not None:
        found.append(_attempt(opened, max(heard, running_until or 0.0), None, ranks))
    return found


def _ranks_by_pool(ranks: object) -> dict[str, int] | None:
    """What a line says, if it says so: it may be of another version, or damaged."""
    if not isinstance(ranks, dict) or not all(isinstance(each, int) for each in ranks.values()):
        return None
    return ranks or None


def _attempt(start: Line, ended: float, code: object, ranks: dict[str, int] | None) -> Attempt:
    began = seconds_since_epoch(start["time"])
    assert began is not None
    restart = start.get("restart", 0)
    return Attempt(
        began,
        ended,
        code if isinstance(code, int) else None,
        restart if isinstance(restart, int) else 0,
        str(start.get("launcher", "")),
        ranks,
    )


def pool_spending(
    cluster: Cluster, layout: Layout, starts: Sequence[Attempt]
) -> tuple[PoolSpending, ...]:
    """What the nodes of all starts cost, pool by pool; each had the ranks of its own layout."""
    now = layout.ranks_by_pool
    ranks = [start.ranks or now for start in starts]
    hours = [start.seconds / 3600 for start in starts]
    used = {name for each in ranks for name in each}
    return tuple(
        _spent_on(pool, [each.get(pool.name, 0) for each in ranks], hours)
        for pool in cluster.pools
        if pool.name in used
    )


def _spent_on(pool: Pool, ranks: Sequence[int], hours: Sequence[float]) -> PoolSpending:
    held = [(count, each) for count, each in zip(ranks, hours, strict=True) if count]
    return PoolSpending(
        pool.name,
        max(ranks),
        pool.num_nodes(max(ranks)),
        pool.billing,
        pool.price_per_hour,
        sum(each * pool.num_nodes(count) for count, each in held),
        sum(each * pool.hourly_price(count) for count, each in held),
    )


def spent_besides(run: RunDir) -> dict[str, float]:
    """Dollars of what a run needed besides its training: measuring, trials, scoring.

    What a run took over from another one was paid for there.
    """
    found = {what: sum(map(_spent, inner)) for what, inner in run.inner_runs().items()}
    return {what: money for what, money in found.items() if money}


def _spent(inner: RunDir) -> float:
    starts = attempts(read_lines(inner))
    if not starts:
        return 0.0
    try:
        cluster, layout = Cluster.load(inner.cluster), Layout.load(inner.layout)
    except UserError:  # cut short, or of another version
        return 0.0
    return sum(pool.money for pool in pool_spending(cluster, layout, starts))


def money_per_hour(cluster: Cluster, layout: Layout) -> float:
    """Dollars that an hour of all nodes of a layout costs."""
    hour = Attempt(0.0, 3600.0, None, 0, "")
    return sum(pool.money for pool in pool_spending(cluster, layout, [hour]))
