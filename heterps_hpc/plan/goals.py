"""Goals in the user's words as one question: the least money under a throughput floor.

Hours, a deadline and a fraction of the best are floors too. Only a budget alone asks for something
else, the fastest plan within it; `fastest.py` answers that by asking about several floors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from heterps_hpc.config import Goal
from heterps_hpc.errors import UserError
from heterps_hpc.plan.problem import Problem

DIGITS = 4
BELOW = 1 - 1e-9  # a floor that is some plan's own throughput must not refuse it by rounding
CLOCK = "%Y-%m-%d %H:%M"


@dataclass(frozen=True)
class Change:
    """A key of the job or cluster file, its value now, and the least (or largest) that helps."""

    what: str
    now: float
    needed: float
    form: Callable[[float], str] | None = None  # of the two values; else plain numbers

    def __str__(self) -> str:
        form = self.form or number
        return f"{self.what}: {form(self.now)} → {form(self.needed)}"


@dataclass(frozen=True)
class SpeedLimit:
    """One of the user's limits, and the floor in samples per second that it means."""

    key: str
    value: float
    floor: float
    value_at: Callable[[float], float]  # the key's value that means another floor
    form: Callable[[float], str] | None = None

    def __str__(self) -> str:
        return f"{self.key} {(self.form or number)(self.value)}"

    def loosened(self, floor: float) -> Change:
        """What the key must be for a lower floor."""
        return Change(self.key, self.value, self.value_at(floor), self.form)


@dataclass(frozen=True)
class Limits:
    """All limits of a job, in one question's terms."""

    speed: tuple[SpeedLimit, ...]
    max_money: float = math.inf

    @property
    def floor(self) -> float:
        """Samples per second that meet every limit of speed; 0 = none."""
        return max((limit.floor for limit in self.speed), default=0.0)

    @property
    def budget_only(self) -> bool:
        """Whether the fastest plan within a budget is wanted."""
        return not self.speed

    def loosened(self, floor: float) -> tuple[Change, ...]:
        """The changes that bring the floor down, one for each limit above it."""
        return tuple(limit.loosened(floor) for limit in self.speed if limit.floor > floor)


def limits_of(
    goal: Goal,
    problem: Problem,
    best: float | None = None,
    start: datetime | None = None,
    num_done: float = 0.0,
) -> Limits:
    """The limits of a goal.

    `best` is the throughput of the fastest plan, which `min_fraction_of_best` needs. `start` is
    when ranks are expected to start (now, if not given), and `num_done` the samples trained
    before: a deadline is for the rest of them.
    """
    found = []
    if goal.min_samples_per_second is not None:
        found.append(floor_limit(goal.min_samples_per_second))
    if goal.min_fraction_of_best is not None:
        assert best is not None
        found.append(_fraction_limit(goal.min_fraction_of_best, best))
    startup = goal.startup_minutes * 60
    num_samples = problem.num_batches * problem.batch_size
    if goal.max_hours is not None:
        found.append(_hours_limit(goal.max_hours, num_samples, startup))
    if goal.deadline is not None:
        begins = (start or datetime.now()).astimezone() + timedelta(seconds=startup)
        found.append(_deadline_limit(goal.deadline, num_samples - num_done, begins))
    return Limits(tuple(found), math.inf if goal.max_money is None else goal.max_money)


def floor_limit(floor: float) -> SpeedLimit:
    """`min_samples_per_second`."""
    return SpeedLimit("min_samples_per_second", floor, floor, lambda at: rounded(at, math.floor))


def _fraction_limit(fraction: float, best: float) -> SpeedLimit:
    return SpeedLimit(
        "min_fraction_of_best",
        fraction,
        fraction * best * BELOW,
        lambda floor: rounded(floor / best, math.floor),
    )


def _hours_limit(hours: float, num_samples: float, startup: float) -> SpeedLimit:
    seconds = hours * 3600 - startup
    if seconds <= 0:
        raise UserError(
            f"goal.max_hours is {number(hours)}, which is no longer than starting takes "
            f"(goal.startup_minutes: {number(startup / 60)}); allow more"
        )
    return SpeedLimit(
        "max_hours",
        hours,
        num_samples / seconds,
        lambda floor: rounded((num_samples / floor + startup) / 3600, math.ceil),
    )


def _deadline_limit(deadline: datetime, num_samples: float, begins: datetime) -> SpeedLimit:
    seconds = (deadline - begins).total_seconds()
    if seconds <= 0:
        raise UserError(
            f"goal.deadline is {deadline:{CLOCK}}, but training can begin at {begins:{CLOCK}} at "
            "the earliest; choose a later one"
        )
    return SpeedLimit(
        "deadline",
        deadline.timestamp(),
        max(num_samples, 1.0) / seconds,
        # the next full minute is late enough
        lambda floor: math.ceil((begins.timestamp() + num_samples / floor) / 60) * 60.0,
        clock_time,
    )


def clock_time(timestamp: float) -> str:
    """Date and time on this machine's clock."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime(CLOCK)


def rounded(value: float, towards: Callable[[float], int]) -> float:
    """A number of few digits on the side that still helps; whole from 1,000 up."""
    if value <= 0:
        return value
    scale = 10.0 ** min(0, math.floor(math.log10(value)) - DIGITS + 1)
    return float(f"{towards(value / scale) * scale:.12g}")


def number(value: float) -> str:
    """A number in full as far as it is known, so that what is printed can be used."""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.{DIGITS}g}"
