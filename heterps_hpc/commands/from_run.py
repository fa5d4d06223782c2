"""A profile from a run's own times: for `heterps measure --from RUN`, and for re-planning."""

from __future__ import annotations

import logging
from pathlib import Path

from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.prepare import thaw
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout
from heterps_hpc.profile import Profile
from heterps_hpc.run_times import read_run_times
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

MIN_STEPS = 20  # batches below which a run's times are mostly those of its start


def profile_from_run(run_dir: Path) -> Profile:
    """The profile that a run was planned from, corrected by what the run took."""
    job, cluster, run = thaw(run_dir)
    if not (run.profile.exists() and run.layout.exists()):
        raise UserError(
            f"{run.path}: has no profile or no layout, so there is nothing that its times could "
            "correct; measure without --from"
        )
    profile = corrected_profile(job, cluster, run, Layout.load(run.layout))
    if profile is None:
        raise UserError(
            f"{run.path}: has no times of at least {MIN_STEPS} batches of all its ranks; give a "
            "run that has trained longer, or measure without --from"
        )
    return profile


def corrected_profile(job: Job, cluster: Cluster, run: RunDir, layout: Layout) -> Profile | None:
    """The run's profile, corrected by the times of its newest start; None if it was too short."""
    from heterps_hpc.plan.given import rate_stages
    from heterps_hpc.profiling.own_times import corrected

    profile = Profile.load(run.profile)
    times = read_run_times(run, layout)
    if not times or min(each.steps for each in times) < MIN_STEPS:
        return None
    samples = min(each.steps for each in times) * job.train.batch_size
    found = corrected(
        profile,
        layout.stages,
        times,
        lambda each: rate_stages(job, cluster, each, layout.stages, samples)[0],
        run.path.name,
    )
    log.info("%s", found.notes[-1])
    return found
