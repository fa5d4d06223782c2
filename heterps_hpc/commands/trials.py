"""Trials: the chosen plan and its runners-up really run for a short time, and the best is taken.

A trial is a run directory of its own, `trials/NAME`; one that is done is not done again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from heterps_hpc import format as fmt
from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.short_run import start_short_run, without_extras
from heterps_hpc.commands.tasks import task
from heterps_hpc.config import Job
from heterps_hpc.errors import StartFailed, UserError
from heterps_hpc.events import read_lines
from heterps_hpc.launch.launcher import Launcher, LaunchRequest
from heterps_hpc.layout import Layout, Plan, Stage
from heterps_hpc.planning_result import MemoryUse, PlanningResult, Trial
from heterps_hpc.profiling.measurement import Tried
from heterps_hpc.report.outcome import shape
from heterps_hpc.rundir import RunDir
from heterps_hpc.spending import attempts

log = logging.getLogger(__name__)

PROGRAM = "heterps_hpc.runtime.measure.trial"
START_MINUTES = 10.0  # that a trial may take besides training, in a queue not counted


def candidates(result: PlanningResult, count: int) -> Iterator[tuple[str, Plan]]:
    """The chosen plan, then the cheapest other plans that are predicted to meet the floor."""
    others = [(runner.what, runner.plan) for runner in result.runners_up]
    others += [(plan.scheduler, plan) for plan in (*result.alternatives, *result.frontier)]
    enough = result.floor * (1 - 1e-6)
    others = [each for each in others if each[1].estimate.samples_per_second >= enough]
    others.sort(key=lambda each: each[1].estimate.money)
    seen: set[tuple[Stage, ...]] = set()
    for what, plan in [("chosen", result.plan), *others]:
        if plan.stages not in seen and len(seen) < count:
            seen.add(plan.stages)
            yield what, plan


def best_trial(
    trials: Sequence[Trial], floor: float, max_money: float | None = None
) -> Trial | None:
    """The cheapest of those that met the floor; if none did, the fastest; None if all failed.

    With a budget and no floor, the fastest within it; if none was, the cheapest.
    """
    ran = [trial for trial in trials if trial.samples_per_second]
    if max_money is not None and not floor:
        ran = [trial for trial in ran if (trial.money or 0.0) <= max_money] or sorted(
            ran, key=lambda trial: trial.money or 0.0
        )[:1]
        return max(ran, key=lambda trial: trial.samples_per_second or 0.0, default=None)
    enough = [trial for trial in ran if (trial.samples_per_second or 0.0) >= floor]
    if enough:
        return min(enough, key=lambda trial: trial.money or 0.0)
    return max(ran, key=lambda trial: trial.samples_per_second or 0.0, default=None)


@dataclass(frozen=True)
class Trials:
    """Runs the trials of one job."""

    job: Job
    cluster: Cluster
    run: RunDir
    launcher: Launcher

    def try_all(self, result: PlanningResult, bind: Callable[[Plan], Layout]) -> tuple[Trial, ...]:
        """Run the candidates one after the other; the best one is marked as taken."""
        wanted = list(candidates(result, self.job.plan.trial_runs))
        found = []
        with task(self.run, "trial") as working:
            for number, (what, plan) in enumerate(wanted, start=1):
                working.part(shape(plan), number, len(wanted))
                found.append(self.try_plan(what, plan, bind(plan)))
        return take_best(found, result.floor, result.max_money)

    def try_plan(self, what: str, plan: Plan, layout: Layout) -> Trial:
        """Run one plan for a short time; a plan that cannot run is no reason to end the others."""
        bound = layout.model_copy(update={"plan": None}).to_json()  # estimates are no part of it
        folder = self.run.trial(hashlib.sha256(bound.encode()).hexdigest()[:12]).create()
        minutes = START_MINUTES + 2 * self.job.plan.trial_seconds / 60
        job = without_extras(self.job, time_limit_minutes=minutes)
        request = LaunchRequest(folder, layout, job, self.cluster, PROGRAM)
        trial = Trial(what=what, plan=plan)
        try:
            if not _is_done(request):
                log.info("trying %s (%s)", what, shape(plan))
                start_short_run(self.launcher, request, folder.tried, f"trying {shape(plan)}")
            rate = Tried.load(folder.tried).samples_per_second
            found: dict[str, object] = {"samples_per_second": rate}
            log.info(
                "tried %s: %s samples/s, predicted %s",
                shape(plan),
                fmt.rate(rate),
                fmt.rate(plan.estimate.samples_per_second),
            )
        except (StartFailed, UserError) as error:
            found = {"failed": str(error).splitlines()[0]}
            log.warning("%s", error)
        seconds = sum(attempt.seconds for attempt in attempts(read_lines(folder)))
        spent = seconds / 3600 * plan.estimate.money_per_hour
        return trial.model_copy(update={**found, "seconds": seconds, "spent": spent})


def _is_done(request: LaunchRequest) -> bool:
    """Whether this very trial has been run, with the same job on the same cluster."""
    run = request.run
    if not (run.tried.exists() and run.job.exists() and run.cluster.exists()):
        return False
    try:
        same = Job.parse_saved(run.job) == request.job
        return same and Cluster.load(run.cluster) == request.cluster
    except UserError:
        return False  # cut short, or of another version


def take_best(
    trials: Sequence[Trial], floor: float, max_money: float | None = None
) -> tuple[Trial, ...]:
    """The trials with the best one marked; why it was taken is logged."""
    best = best_trial(trials, floor, max_money)
    if best is None:
        raise UserError(
            f"all {len(trials)} plans failed when they were tried ({trials[0].failed}); look at "
            "their logs in `trials`, or plan without trials (`plan: {trial_runs: 0}`)"
        )
    if (best.samples_per_second or 0.0) < floor:
        log.warning(
            "no plan that was tried reached the floor of %s samples/s; taking the fastest, %s",
            fmt.rate(floor),
            shape(best.plan),
        )
    return tuple(trial.model_copy(update={"taken": trial is best}) for trial in trials)


def with_trials(
    result: PlanningResult, trials: tuple[Trial, ...], memory: tuple[MemoryUse, ...]
) -> PlanningResult:
    """The result with the plan that was taken, its distance from the same certified optimum, and
    the memory of its ranks."""
    taken = next(trial.plan for trial in trials if trial.taken)
    optimum = result.plan.optimum_money
    if optimum:
        gap = max(0.0, taken.estimate.money / optimum - 1)
        certificate = {"optimum_money": optimum, "gap_is_bound": result.plan.gap_is_bound}
        taken = taken.model_copy(update={**certificate, "gap": gap})
    return result.model_copy(update={"trials": trials, "plan": taken, "memory": memory})
