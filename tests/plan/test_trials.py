"""Trials: which plans are tried, which one is taken, and that a trial done is not done again."""

from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.commands.trials import Trials, best_trial, candidates, take_best
from heterps_hpc.config import PlanSpec
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, Listener
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.layout import Estimate, Plan, Stage
from heterps_hpc.planning_result import PlanningResult, RunnerUp, Trial
from heterps_hpc.profiling.measurement import Tried
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.measure.trial import steady
from tests.launch.values import make_cluster, make_job, make_layout


def plan_of(ranks: int, rate: float, per_hour: float) -> Plan:
    """A plan for a million samples."""
    hours = 1e6 / rate / 3600
    estimate = Estimate(
        samples_per_second=rate,
        seconds_per_batch=1.0,
        binding_stage=0,
        stages=(),
        hours=hours,
        money_per_hour=per_hour,
        money=hours * per_hour,
    )
    stages = (Stage(pool="cpu", layers=("a",), num_ranks=ranks),)
    return Plan(stages=stages, estimate=estimate, scheduler="exact")


CHOSEN, NEAR, FAST = plan_of(1, 1000, 1.0), plan_of(2, 1800, 2.0), plan_of(4, 2500, 4.0)
RESULT = PlanningResult(
    plan=CHOSEN,
    floor=900,
    runners_up=(RunnerUp(what="fast", plan=FAST), RunnerUp(what="near", plan=NEAR)),
    alternatives=(CHOSEN, plan_of(8, 100, 0.01)),  # the second is cheap but below the floor
)


def trial(plan: Plan, rate: float | None) -> Trial:
    return Trial(what="", plan=plan, samples_per_second=rate, failed="" if rate else "died")


def test_the_chosen_plan_is_tried_and_then_the_cheapest_others_that_meet_the_floor() -> None:
    assert [what for what, _ in candidates(RESULT, 3)] == ["chosen", "near", "fast"]
    assert [what for what, _ in candidates(RESULT, 2)] == ["chosen", "near"]
    assert len(list(candidates(RESULT, 9))) == 3  # a plan is not tried twice


def test_the_cheapest_as_tried_of_those_that_meet_the_floor_is_taken() -> None:
    slow = trial(CHOSEN, 950.0)
    assert best_trial([slow, trial(NEAR, 1800.0), trial(FAST, 2500.0)], 900) is slow
    # the chosen plan is slower than predicted: too slow, or slow enough to cost more
    near = trial(NEAR, 1800.0)
    assert best_trial([trial(CHOSEN, 850.0), near, trial(FAST, 2500.0)], 900) is near
    assert best_trial([trial(CHOSEN, 850.0), near], 0) is near
    # none is fast enough: the fastest; one failed: the others
    assert best_trial([trial(CHOSEN, 500.0), near], 2000) is near
    assert best_trial([trial(CHOSEN, None), near], 900) is near
    assert near.money is not None
    assert best_trial([slow, near, trial(FAST, 2500.0)], 0, near.money) is near  # a budget's
    with pytest.raises(UserError, match="died"):
        take_best([trial(CHOSEN, None)], 900)


def test_a_trials_money_is_that_of_the_whole_job_at_its_rate() -> None:
    assert trial(CHOSEN, 500.0).money == pytest.approx(2 * CHOSEN.estimate.money)


def test_the_start_does_not_count() -> None:
    moments = [0.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]  # the first step took as long as five others
    assert steady(moments) == (1, 5.0)
    assert steady([0.0, 3.0]) == (0, 3.0)


class PlayedLauncher(LocalLauncher):
    """Writes a trial's result instead of running it."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    def start(self, request: LaunchRequest, listener: Listener | None = None) -> ExitCode:
        self.starts += 1
        events.record(request.run, events.Started(time=100.0))
        Tried(steps=9, samples=900, seconds=1.0).save(request.run.tried)
        events.record(request.run, events.Ended(code=0, time=136.0))
        return ExitCode.DONE


def test_a_trial_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    cluster, job, launcher = make_cluster(), make_job(), PlayedLauncher()
    layout = make_layout(cluster, ("cpu", 1))
    run = RunDir(tmp_path)
    first = Trials(job, cluster, run, launcher).try_plan("chosen", CHOSEN, layout)
    assert first.samples_per_second == 900
    assert first.seconds == 36.0
    assert first.spent == pytest.approx(36 / 3600 * CHOSEN.estimate.money_per_hour)
    assert Trials(job, cluster, run, launcher).try_plan("chosen", CHOSEN, layout) == first
    assert launcher.starts == 1
    longer = job.model_copy(update={"plan": PlanSpec(trial_seconds=99)})
    Trials(longer, cluster, run, launcher).try_plan("chosen", CHOSEN, layout)
    assert launcher.starts == 2
