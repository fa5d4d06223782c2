"""`heterps plan`: profile → plan → layout, and what is printed of it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.measured_before import profile_next_to
from heterps_hpc.commands.prepare import (
    default_run_dir,
    model_of,
    ready_data,
    samples_to_train,
)
from heterps_hpc.commands.tasks import task
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.job_inputs import load_inputs
from heterps_hpc.launch.launcher import Launcher, LaunchRequest
from heterps_hpc.launch.live_line import timed_line
from heterps_hpc.layout import Layout, Plan
from heterps_hpc.planning_result import PlanningResult
from heterps_hpc.profile import Profile
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

MAX_ROUNDS = 4  # of planning for a deadline and asking when that plan's job could start


def plan(
    job: Job,
    cluster: Cluster,
    run_dir: RunDir,
    profile_file: Path | None = None,
    *,
    on: Launcher | None = None,
    try_on: Launcher | None = None,
    as_json: bool = False,
) -> Layout:
    """Decide, write layout.json and planning.json, print the result.

    For a deadline the queue of `on` counts. With `try_on`, plans are tried there first if the job
    says so; the layout is written last, so that a command that was stopped meanwhile continues
    with the trials that are left.
    """
    profile = _profile(profile_file or _measured(run_dir, job, cluster))
    ready_data(job)
    with task(run_dir, "plan", f"with {job.plan.scheduler}"):
        result, layout = _in_time(job, cluster, profile, run_dir, on)
    if try_on is not None and job.plan.trial_runs:
        result, layout = _tried(result, job, cluster, run_dir, profile, try_on)
    result.save(run_dir.schedulers)
    layout.save(run_dir.layout)
    _print(result, layout, as_json=as_json)
    return layout


def what_if(
    job_file: Path,
    settings: Sequence[str],
    run_dir: Path | None = None,
    profile_file: Path | None = None,
    scheduler: str | None = None,
    *,
    as_json: bool = False,
) -> None:
    """Plan with some keys changed, and print the difference to the plan without; write nothing."""
    from heterps_hpc.plan.difference import show_difference

    always = [] if scheduler is None else [f"plan.scheduler={scheduler}"]
    job, cluster = load_inputs(job_file, always)
    changed, other = load_inputs(job_file, [*always, *settings])
    directory = RunDir(run_dir or default_run_dir(job_file, job))
    measured = _measured(directory, job, cluster)
    if run_dir is None and not measured.exists():  # a guess may start from the last run as it was
        measured = RunDir(default_run_dir(job_file, job, resume=True)).profile
    profile = _profile(profile_file or measured)
    with timed_line("planning as it is"):
        try:
            before, refusal = decide(job, cluster, profile)[0], ""
        except UserError as error:
            before, refusal = None, str(error)
    with timed_line("planning with the change"):
        after, layout = decide(changed, other, profile)
    if as_json:
        old = None if before is None else before.model_dump(mode="json")
        new = after.model_dump(mode="json")
        answer = {"set": list(settings), "before": old, "after": new}
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return
    _print(after, layout, as_json=False)
    show_difference(before, refusal, after, settings)


def decide(
    job: Job,
    cluster: Cluster,
    profile: Profile,
    *,
    start: datetime | None = None,
    num_done: float = 0.0,
) -> tuple[PlanningResult, Layout]:
    """The plan of a job and its layout; `start` and `num_done` as `make_plan` has them."""
    from heterps_hpc.plan.planner import layout_from, make_plan

    dataset = Dataset.open(job.data.train)
    model, num_samples = model_of(job, dataset), samples_to_train(job, dataset)
    result = make_plan(
        job, cluster, profile, model, num_samples, start=start, num_done=min(num_done, num_samples)
    )
    return result, layout_from(result, job, cluster, profile, model)


def _in_time(
    job: Job, cluster: Cluster, profile: Profile, run: RunDir, launcher: Launcher | None
) -> tuple[PlanningResult, Layout]:
    """The plan of a run; for a deadline one whose job can start early enough.

    When a job can start depends on its size, which is the plan's: so plan, ask, and plan again
    with the time that is left then.
    """
    saved, start = run.saved_steps(), None
    num_done = saved[-1] * job.train.batch_size if saved else 0
    for _ in range(MAX_ROUNDS):
        result, layout = decide(job, cluster, profile, start=start, num_done=num_done)
        if job.goal.deadline is None or launcher is None:
            return result, layout
        start = launcher.expected_start(LaunchRequest(run, layout, job, cluster))
        needed = timedelta(hours=result.plan.estimate.hours, minutes=job.goal.startup_minutes)
        if start is None or start + needed <= job.goal.deadline:
            return result, layout
    raise UserError(
        f"goal.deadline is {job.goal.deadline:%Y-%m-%d %H:%M}, but a job of this size could start "
        f"at {start:%Y-%m-%d %H:%M} only, and so could every other that was tried; choose a later "
        "one, or other partitions"
    )


def _tried(
    result: PlanningResult,
    job: Job,
    cluster: Cluster,
    run_dir: RunDir,
    profile: Profile,
    launcher: Launcher,
) -> tuple[PlanningResult, Layout]:
    """The result with the plan that was best when it and its runners-up really ran."""
    from heterps_hpc.commands.trials import Trials, with_trials
    from heterps_hpc.plan.given import rate_stages
    from heterps_hpc.plan.planner import layout_from

    dataset = Dataset.open(job.data.train)
    model, num_samples = model_of(job, dataset), samples_to_train(job, dataset)

    def bind(chosen: Plan) -> Layout:
        of_plan = result.model_copy(update={"plan": chosen})
        return layout_from(of_plan, job, cluster, profile, model)

    trials = Trials(job, cluster, run_dir, launcher).try_all(result, bind)
    taken = next(trial.plan for trial in trials if trial.taken)
    _, memory = rate_stages(job, cluster, profile, taken.stages, num_samples)
    found = with_trials(result, trials, memory)
    return found, bind(found.plan)


def _profile(file: Path) -> Profile:
    if not file.exists():
        raise UserError(f"{file}: no such profile; `heterps measure JOB` makes one")
    return Profile.load(file)


def _measured(run: RunDir, job: Job, cluster: Cluster) -> Path:
    """The run's own profile; before it has one, that of a run next to it that did the same."""
    other = None if run.profile.exists() else profile_next_to(run, job, cluster)
    if other is None:
        return run.profile
    log.info("planning from the profile of %s", other.parent)
    return other


def _print(result: PlanningResult, layout: Layout, *, as_json: bool) -> None:
    from heterps_hpc.plan.terminal import show

    if as_json:
        sys.stdout.write(result.to_json())
    else:
        show(result, layout)
