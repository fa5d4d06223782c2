"""Time on the wall, from the command to its end: what `heterps` did, and what its ranks did."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from heterps_hpc.events import Started, TaskEnded, TrainingBegan
from heterps_hpc.phases import Phase
from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.spending import attempts, seconds_since_epoch

_TASKS = {
    "data": "preparing data",
    "measure": "measuring",
    "plan": "planning",
    "trial": "trying plans",
}


@dataclass(frozen=True)
class WallTime:
    """One part of the time that a user waits."""

    what: str
    seconds: float


def wall_times(run: RecordedRun) -> list[WallTime]:
    """Parts in the order in which they happen; all starts of the ranks together."""
    seconds: dict[str, float] = defaultdict(float)
    for event in run.events:
        took = event.get("seconds")
        if event["event"] == TaskEnded.kind and isinstance(took, int | float):
            name = str(event.get("task"))
            seconds[_TASKS.get(name, name)] += took
    allocated = sum(attempt.seconds for attempt in attempts(run.events))
    starting = _starting_seconds(run)
    evaluating = _longest(run, Phase.EVALUATE)
    saving = _longest(run, Phase.SAVE, Phase.WAIT_FOR_SAVE)
    ranks = {"starting ranks": starting, "evaluating": evaluating, "saving": saving}
    ranks["training"] = max(0.0, allocated - sum(ranks.values()))
    order = ("starting ranks", "training", "evaluating", "saving")
    seconds |= {name: ranks[name] for name in order if allocated > 0}
    return [WallTime(what, took) for what, took in seconds.items() if took > 0]


def _starting_seconds(run: RecordedRun) -> float:
    """From each start until its ranks trained."""
    total, began = 0.0, None
    for event in run.events:
        moment = seconds_since_epoch(event.get("time"))
        if event["event"] == Started.kind:
            began = moment
        elif event["event"] == TrainingBegan.kind and began is not None and moment is not None:
            total += max(0.0, moment - began)
            began = None
    return total


def _longest(run: RecordedRun, *phases: Phase) -> float:
    """Of the rank that spent most in these phases."""
    ranks = run.summary.ranks if run.summary else ()
    return max((sum(rank.seconds.get(name, 0.0) for name in phases) for rank in ranks), default=0.0)
