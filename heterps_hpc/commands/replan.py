"""Re-planning while a run trains: its own times make a new plan for what is left of the job.

Once after `plan.replan_after_minutes`, and at every restart. If the new plan saves enough of the
money that is left, the restart included, or if the layout turns out to be below the floor, the run
saves and continues on the new layout, by the same way as when nodes are lost
(launch/restart_policy.py).
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor

from heterps_hpc import events
from heterps_hpc.commands.from_run import corrected_profile
from heterps_hpc.commands.prepare import model_of, samples_to_train
from heterps_hpc.dataset import Dataset
from heterps_hpc.heartbeats import read_beats
from heterps_hpc.launch.launcher import BetterLayout, LaunchRequest, Replanner
from heterps_hpc.layout import Layout
from heterps_hpc.plan.given import rate_stages
from heterps_hpc.plan.planner import layout_from, make_plan
from heterps_hpc.run_times import read_run_times

log = logging.getLogger(__name__)

MIN_SAVING = 0.05  # of the money that is left, below which a restart is not worth its risk
_LOOK_SECONDS = 2.0


def replanner_of(request: LaunchRequest) -> Replanner:
    """Who re-plans this run; nobody unless the job asks for it, or if it was not planned here."""
    minutes = request.job.plan.replan_after_minutes
    if minutes is None or not request.run.profile.exists():
        return Replanner()
    return OwnTimes(request, 60 * minutes)


class OwnTimes(Replanner):
    """Plans from the run's own times: once in the background of training, and between starts."""

    def __init__(self, request: LaunchRequest, after_seconds: float) -> None:
        self._request = request
        self._after_seconds = after_seconds
        self._look_at = time.monotonic() + after_seconds
        self._planning: Future[None] | None = None
        self._is_over = False  # the one look while the run trains
        self._answers: dict[int, BetterLayout | None] = {}  # by start

    def poll(self) -> bool:
        """Start to plan when it is time, in a thread; true once, if that found a better layout."""
        if self._is_over or time.monotonic() < self._look_at:
            return False
        if self._planning is not None and self._planning.done():
            self._is_over = True
            return self._answers.get(self._start()) is not None
        self._look_at = time.monotonic() + _LOOK_SECONDS
        if self._planning is None and self._has_trained_enough():
            pool = ThreadPoolExecutor(1, thread_name_prefix="heterps-replan")
            self._planning = pool.submit(self._plan, self._start())
            pool.shutdown(wait=False)
        return False

    def better(self) -> BetterLayout | None:
        """What the newest start has shown."""
        start = self._start()
        if start not in self._answers:
            self._plan(start)
        return self._answers[start]

    def _start(self) -> int:
        return len(events.read(self._request.run).of(events.Started))

    def _has_trained_enough(self) -> bool:
        times = read_run_times(self._request.run, Layout.load(self._request.run.layout))
        return bool(times) and min(t.training_seconds for t in times) >= self._after_seconds

    def _plan(self, start: int) -> None:
        """Whatever goes wrong here must not end a run that can continue as it is."""
        try:
            self._answers[start] = better_layout(self._request)
        except Exception as error:
            log.warning("no new plan from the run's own times: %s", error)
            self._answers[start] = None


def better_layout(request: LaunchRequest) -> BetterLayout | None:
    """A plan for the rest of the job that is cheaper by the run's own times, if there is one."""
    job, cluster, run = request.job, request.cluster, request.run
    layout = Layout.load(run.layout)
    if layout.plan is None:
        return None  # someone wrote it by hand, and meant it
    data = Dataset.open(job.data.train)
    total = samples_to_train(job, data)
    left = total - steps_done(request) * job.train.batch_size
    profile = corrected_profile(job, cluster, run, layout)
    if profile is None or left <= 0:
        return None
    model = model_of(job, data)
    job = job.model_copy(update={"goal": job.goal.for_part(left / total)})
    result = make_plan(job, cluster, profile, model, left)
    now, _ = rate_stages(job, cluster, profile, layout.stages, left)
    then = result.plan.estimate
    restart = restart_seconds(request) / 3600 * (now.money_per_hour + then.money_per_hour)
    saving = 1 - (then.money + restart) / now.money
    too_slow = now.samples_per_second < (1 - MIN_SAVING) * result.floor
    if result.plan.stages == layout.stages or (saving < MIN_SAVING and not too_slow):
        log.info("by the run's own times its layout is still good: a change saves less than 5 %%")
        return None
    log.info("by the run's own times %s", _why(saving, too_slow, result.floor))

    def take() -> None:
        profile.save(run.profile)
        result.save(run.schedulers)

    return BetterLayout(layout_from(result, job, cluster, profile, model), saving, take)


def _why(saving: float, too_slow: bool, floor: float) -> str:
    if too_slow:
        return f"its layout is below the floor of {floor:,.0f} samples/s, and another is not"
    return f"another layout saves {saving:.0%} of the money that is left".replace("%", " %")


def steps_done(request: LaunchRequest) -> int:
    """Batches that the run need not do again: up to its newest checkpoint, or if it still trains
    up to where it is, as it will save there."""
    beats = read_beats(request.run)
    ended = events.read(request.run).newest_start.last(events.Ended) is not None
    if beats and not ended:
        return min(beat.step for beat in beats)
    return max(request.run.saved_steps(), default=0)


def restart_seconds(request: LaunchRequest) -> float:
    """What the newest start took until it trained: nodes are paid for about as long twice, where
    ranks save and end, and where others begin."""
    start = events.read(request.run).newest_start
    started, training = start.last(events.Started), start.last(events.TrainingBegan)
    if started is None or training is None:
        return 0.0
    return max(0.0, training.time - started.time)
