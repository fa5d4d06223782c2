"""A run's own times: what each rank's batches took, phase by phase.

While it runs they come from the heartbeats, when it has ended from its summary.
"""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import ConfigDict, Field

from heterps_hpc import events
from heterps_hpc.errors import UserError
from heterps_hpc.events import Started
from heterps_hpc.heartbeats import read_beats
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from heterps_hpc.validation import Value

NotNegativeFloat = Annotated[float, Field(ge=0)]


class RankTimes(Value):
    """One rank since its start."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    rank: Annotated[int, Field(ge=0)]
    stage: Annotated[int, Field(ge=0)]
    steps: Annotated[int, Field(ge=0)] = 0
    training_seconds: NotNegativeFloat = 0.0  # without evaluations and saves
    seconds: dict[str, NotNegativeFloat] = Field(default_factory=dict)  # by phase
    device_seconds: dict[str, NotNegativeFloat] = Field(default_factory=dict)  # where it has one

    def per_step(self, *phases: str) -> float:
        """Seconds of these phases in one batch: the device's own, of those that it works on."""
        own = {**self.seconds, **self.device_seconds}
        return sum(own.get(name, 0.0) for name in phases) / max(self.steps, 1)


def read_run_times(run: RunDir, layout: Layout) -> tuple[RankTimes, ...]:
    """The times of all ranks of the newest start; none if some rank has not trained yet."""
    started = events.read(run).last(Started)
    since = 0.0 if started is None else started.time
    found = _from_summary(run, since) or [
        RankTimes(
            rank=beat.rank,
            stage=beat.stage,
            steps=beat.steps,
            training_seconds=beat.training_seconds,
            seconds=beat.seconds,
        )
        for beat in read_beats(run)
        if beat.at >= since
    ]
    wanted = [(entry.rank, entry.stage) for entry in layout.ranks]
    if [(each.rank, each.stage) for each in found] != wanted:
        return ()
    return tuple(found) if all(each.steps and each.training_seconds for each in found) else ()


def _from_summary(run: RunDir, since: float) -> list[RankTimes]:
    """Empty if there is none of this start."""
    try:
        if run.summary.stat().st_mtime < since:
            return []
        ranks = json.loads(run.summary.read_bytes())["ranks"]
        return [RankTimes.parse(each, str(run.summary)) for each in ranks]
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return []
