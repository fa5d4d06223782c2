"""Restarts: the one rule when a run is started again, on a new layout if nodes are gone.

Any layout resumes any checkpoint, so fewer nodes only mean another plan. `launch.max_restarts: n`
means n + 1 starts in all, here and on Slurm, whoever makes them: the loop below, the end of a batch
script, or Slurm after a node died.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from heterps_hpc import events
from heterps_hpc.cluster import Cluster
from heterps_hpc.errors import UserError
from heterps_hpc.events import History, PlannedAgain
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import Capacity, Launcher, LaunchRequest, Listener
from heterps_hpc.layout import Layout

log = logging.getLogger(__name__)

Plan = Callable[[Cluster], Layout]


def allows_restart(history: History, code: ExitCode, max_restarts: int) -> bool:
    """Whether to start again after a start that ended so."""
    return code.resumable and history.num_starts <= max_restarts and not history.stop_wanted


def restarts_left(history: History, max_restarts: int) -> int:
    """How often a job that is about to be queued may be queued again."""
    return max(0, max_restarts - history.num_starts)


def run_with_restarts(
    launcher: Launcher, request: LaunchRequest, listener: Listener, plan: Plan
) -> ExitCode:
    """Start until the run is done, stopped, or has failed too often.

    `plan` decides again for a cluster that has become smaller.
    """
    max_restarts = request.job.launch.max_restarts
    code = launcher.start(request, listener)
    for _ in range(max_restarts):  # also bounded where a full disk keeps starts from being counted
        history = events.read(request.run)
        if not allows_restart(history, code, max_restarts):
            break
        capacity = launcher.capacity(request.cluster, request.job)
        if not fits(request.layout, capacity):
            layout = plan(smaller(request.cluster, capacity))
            layout.save(request.run.layout)
            request = replace(request, layout=layout)
            events.record(request.run, PlannedAgain(capacity=dict(capacity)))
            log.warning("the pools have become smaller; continuing with %d ranks", layout.num_ranks)
        log.warning("starting again, from the newest checkpoint")
        code = launcher.start(request, listener)
    return code


def fits(layout: Layout, capacity: Capacity) -> bool:
    """Whether every component of a layout still finds enough nodes."""
    return all(part.num_ranks <= capacity.get(part.pool, 0) for part in layout.components)


def smaller(cluster: Cluster, capacity: Capacity) -> Cluster:
    """The cluster as it is now; pools that can give nothing are left out."""
    pools = tuple(
        pool.model_copy(update={"max_ranks": min(pool.rank_limit, capacity[pool.name])})
        for pool in cluster.pools
        if capacity.get(pool.name, 0) > 0
    )
    if not pools:
        raise UserError(
            f"no pool of cluster {cluster.name!r} has a node left; the checkpoints stay: continue "
            "with --resume when nodes are back"
        )
    names = {pool.name for pool in pools}
    links = tuple(link for link in cluster.links if set(link.pools) <= names)
    return cluster.model_copy(update={"pools": pools, "links": links})
