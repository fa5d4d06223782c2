"""What the cost model says of stages that are given: a plan that was tried, or one that runs."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.layout import Estimate, Stage
from heterps_hpc.plan.cost_model import Choice, StageTable, estimate, memory_of
from heterps_hpc.plan.problem import problem_of_job
from heterps_hpc.planning_result import MemoryUse
from heterps_hpc.profile import Profile


def rate_stages(
    job: Job, cluster: Cluster, profile: Profile, stages: Sequence[Stage], num_samples: float
) -> tuple[Estimate, tuple[MemoryUse, ...]]:
    """What a plan of these stages is predicted to do and to cost, and the memory of its ranks."""
    table = StageTable(problem_of_job(profile, cluster, job, num_samples))
    pools = table.problem.pools.names
    choices: list[Choice] = []
    first = 0
    for stage in stages:
        last = first + len(stage.layers) - 1
        choices.append(Choice(first, last, pools.index(stage.pool), stage.num_ranks))
        first = last + 1
    return estimate(table, choices), memory_of(table, choices)
