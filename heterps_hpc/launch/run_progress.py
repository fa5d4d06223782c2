"""How far a run is, what it still needs, and what it costs: read from its files by anyone.

The live line of `heterps run` and `heterps status` show the same, because both read it here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from heterps_hpc import events
from heterps_hpc import format as fmt
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.events import Ended, History, Launched, Started, TaskBegan, TrainingBegan
from heterps_hpc.heartbeats import Beat, read_beats
from heterps_hpc.launch.progress import Metrics, newest_metrics
from heterps_hpc.layout import Layout
from heterps_hpc.phases import Phase
from heterps_hpc.rundir import RunDir
from heterps_hpc.spending import Attempt, attempts, money_per_hour, pool_spending, spent_besides

_TASKS = {
    "data": "preparing data",
    "measure": "measuring",
    "plan": "planning",
    "trial": "trying",
}
_DOING = {
    Phase.EVALUATE: "evaluating",
    Phase.SAVE: "saving",
    Phase.WAIT_FOR_SAVE: "saving",
    Phase.RESTORE: "restoring",
}


@dataclass(frozen=True)
class RunProgress:
    """Where a run is; what is not known is None."""

    doing: str  # such as: training
    part: str = ""  # such as: pool cpu with 2 ranks
    done: int | None = None  # steps of training, or parts of a task
    total: int | None = None
    unit: str = "step"  # of `done`: a step of training, or a batch of a pass over test data
    elapsed_seconds: float | None = None
    remaining_seconds: float | None = None
    loss: float | None = None
    auc: float | None = None  # of the newest evaluation on test data
    samples_per_second: float | None = None
    money: float | None = None  # so far
    expected_money: float | None = None  # at the end

    @property
    def fraction(self) -> float | None:
        """Done so far, from 0 to 1."""
        if self.done is None or not self.total:
            return None
        return min(1.0, self.done / self.total)

    @property
    def news(self) -> RunProgress:
        """Without what changes by itself: two that are equal say the same."""
        return replace(
            self,
            elapsed_seconds=None,
            remaining_seconds=None,
            money=None,
            expected_money=None,
        )

    def words(self) -> list[str]:
        """What there is to show, the most important first."""
        words = [self.doing + (f" {self.part}" if self.part else "")]
        if self.done is not None and self.total and self.part:
            words.append(f"{self.done} of {self.total}")
        elif self.done is not None and self.total:
            percent = fmt.percent(self.fraction or 0.0, 0)
            words.append(f"{self.unit} {fmt.count(self.done)}/{fmt.count(self.total)} ({percent})")
        if self.remaining_seconds:
            words.append(f"ETA {fmt.clock(self.remaining_seconds)}")
        elif self.elapsed_seconds is not None:
            words.append(fmt.clock(self.elapsed_seconds))
        if self.loss is not None:
            words.append(f"loss {self.loss:.4f}")
        if self.samples_per_second is not None:
            words.append(f"{fmt.rate(self.samples_per_second)} samples/s")
        if self.money is not None:
            of = "" if self.expected_money is None else f" of {fmt.money(self.expected_money)}"
            words.append(f"{fmt.money(self.money)}{of}")
        if self.auc is not None:
            words.append(f"AUC {self.auc:.4f}")
        return words


def read_progress(run: RunDir, now: float | None = None) -> RunProgress | None:
    """Look at a run that is at work; None if nothing of it has begun."""
    now = time.time() if now is None else now
    history = events.read(run)
    if history.task is not None:
        return _of_task(history.task, now)
    return _of_training(run, history, now) if history.was_launched else None


def fit_words(words: Sequence[str], width: int, max_lines: int = 2) -> str:
    """As many words as fit into a few lines, the first ones first; none is cut."""
    lines = [""]
    for word in words:
        joined = f"{lines[-1]} · {word}" if lines[-1] else word
        if len(joined) <= width:
            lines[-1] = joined
        elif len(lines) < max_lines and len(word) <= width:
            lines.append(word)
        else:
            break
    return "\n".join(lines)


def _of_task(task: TaskBegan, now: float) -> RunProgress:
    return RunProgress(
        doing=_TASKS.get(task.task, task.task),
        part=task.part,
        done=task.number,
        total=task.total,
        elapsed_seconds=max(0.0, now - task.time),
    )


def _of_training(run: RunDir, history: History, now: float) -> RunProgress:
    """From the newest start on: it waits in the queue, starts, trains, evaluates, saves."""
    launched = history.since(Launched)
    start = launched.newest_start
    started, training, end = start.last(Started), start.last(TrainingBegan), start.last(Ended)
    since = (started or start.events[-1]).time
    beats = [beat for beat in read_beats(run) if end is None and beat.at >= since]
    metrics = newest_metrics(run.metrics)
    train, test = metrics.get("train", {}), metrics.get("evaluation", {})
    inner = [each.history for runs in run.inner_runs().values() for each in runs]
    planned = _planned(run.path, _stamp(run.job, run.cluster, run.layout, *inner))
    step = None if training is None else _step(training, metrics, beats)
    rate = train.get("samples_per_second") or planned.samples_per_second
    remaining = None
    if training is not None and step is not None and rate and planned.batch_size and end is None:
        remaining = (training.total_steps - step) * planned.batch_size / rate
    until = now if end is None else None
    spent = planned.spent(attempts(events.read_lines(run), until))
    if spent is not None:
        spent += planned.besides
    done, total, unit = _counted(training, step, beats)
    waits = history.job_id is not None and (started is None or (end is not None and end.again))
    last = None if end is None or end.again else end.time
    now_doing = _doing(training, step, beats) if last is None else "ended"
    return RunProgress(
        doing="waiting in the queue" if waits else now_doing,
        done=done,
        total=total,
        unit=unit,
        elapsed_seconds=max(0.0, (now if last is None else last) - since),
        remaining_seconds=remaining,
        loss=train.get("loss"),
        auc=test.get("auc"),
        samples_per_second=train.get("samples_per_second"),
        money=spent,
        expected_money=(
            None
            if spent is None or remaining is None
            else spent + planned.money_per_hour * remaining / 3600
        ),
    )


def _step(training: TrainingBegan, metrics: dict[str, Metrics], beats: list[Beat]) -> int:
    """The newest that is known: metrics are written every few steps, heartbeats by the clock."""
    known = [training.step, *(int(record.get("step", 0)) for record in metrics.values())]
    slowest = min((beat.step for beat in beats), default=0)
    return min(max(*known, slowest), training.total_steps)


def _counted(
    training: TrainingBegan | None, step: int | None, beats: list[Beat]
) -> tuple[int | None, int | None, str]:
    """Done, in all, and of what: batches while test data is passed over, else steps."""
    passes = [beat for beat in beats if beat.pass_total]
    if passes:
        slowest = min(passes, key=lambda beat: beat.pass_done)
        return slowest.pass_done, slowest.pass_total, "batch"
    return step, None if training is None else training.total_steps, "step"


def _doing(training: TrainingBegan | None, step: int | None, beats: list[Beat]) -> str:
    if training is None:
        return "starting ranks"
    phases = {beat.phase for beat in beats}
    for phase, text in _DOING.items():
        if phase in phases:
            return text
    return "evaluating and saving" if step == training.total_steps else "training"


@dataclass(frozen=True)
class _Planned:
    """What the files that do not change while ranks run contribute."""

    batch_size: int | None = None
    samples_per_second: float | None = None
    bound: tuple[Cluster, Layout] | None = None
    besides: float = 0.0  # $ for measuring and trials, which were before

    @property
    def money_per_hour(self) -> float:
        """Of the layout as it is now."""
        return 0.0 if self.bound is None else money_per_hour(*self.bound)

    def spent(self, starts: Sequence[Attempt]) -> float | None:
        """Dollars so far."""
        if self.bound is None:
            return None
        return sum(pool.money for pool in pool_spending(*self.bound, starts))


def _stamp(*paths: Path) -> tuple[int, ...]:
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


@lru_cache(maxsize=4)
def _planned(run_path: Path, stamp: tuple[int, ...]) -> _Planned:
    """Read once for each `stamp`: a layout of many ranks takes a while."""
    run = RunDir(run_path)
    try:
        batch_size = Job.parse_saved(run.job).train.batch_size
        layout = Layout.load(run.layout)
        bound = Cluster.load(run.cluster), layout
    except UserError:  # not there yet, or of another version
        return _Planned()
    plan = layout.plan
    rate = plan.estimate.samples_per_second if plan else None
    return _Planned(batch_size, rate, bound, sum(spent_besides(run).values()))
