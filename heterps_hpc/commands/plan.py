"""`heterps plan`: profile → plan → layout, and what is printed of it."""

from __future__ import annotations

from pathlib import Path

from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.prepare import model_of, ready_data, samples_to_train
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout
from heterps_hpc.profile import Profile
from heterps_hpc.rundir import RunDir


def plan(job: Job, cluster: Cluster, run_dir: RunDir, profile_file: Path | None = None) -> Layout:
    """Decide, write layout.json and planning.json, print the table."""
    from heterps_hpc.plan.planner import layout_from, make_plan
    from heterps_hpc.plan.terminal import show

    dataset = ready_data(job)
    model = model_of(job, dataset)
    if profile_file is None and not run_dir.profile.exists():
        raise UserError(
            f"{run_dir.path}: no profile yet; run `heterps measure JOB` first, or give `--profile`"
        )
    profile = Profile.load(profile_file or run_dir.profile)
    result = make_plan(job, cluster, profile, model, samples_to_train(job, dataset))
    layout = layout_from(result, job, cluster, profile, model)
    result.save(run_dir.schedulers)
    layout.save(run_dir.layout)
    show(result, layout)
    return layout
