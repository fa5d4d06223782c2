"""Restarts: the one rule when a run is started again, on a new layout if nodes are gone or if the
run's own times gave a cheaper one.

Any layout resumes any checkpoint, so that both only mean another plan. `launch.max_restarts: n`
means n + 1 starts in all, here and on Slurm, in whichever way: the loop below, the end of a batch
script, or Slurm after a node died. A start that ends for a cheaper layout does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from heterps_hpc import events
from heterps_hpc.cluster import Cluster
from heterps_hpc.errors import UserError
from heterps_hpc.events import History, LayoutChangeWanted, PlannedAgain
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import Capacity, Launcher, LaunchRequest, Listener
from heterps_hpc.layout import Layout

log = logging.getLogger(__name__)

Plan = Callable[[Cluster], Layout]


def allows_restart(history: History, code: ExitCode, max_restarts: int) -> bool:
    """Whether to start again after a start that ended so."""
    return code.resumable and history.num_restarts <= max_restarts and not history.stop_wanted


def restarts_left(history: History, max_restarts: int) -> int:
    """How often a job that is about to be queued may be queued again."""
    return max(0, max_restarts - history.num_restarts)


def run_with_restarts(
    launcher: Launcher, request: LaunchRequest, listener: Listener, plan: Plan
) -> ExitCode:
    """Start until the run is done, stopped, or has failed too often.

    `plan` decides again for a cluster that has become smaller.
    """
    max_restarts = request.job.launch.max_restarts
    code = launcher.start(request, listener)
    left, changed = max_restarts, False  # also where a full disk keeps starts from being counted
    while allows_restart(history := events.read(request.run), code, max_restarts):
        if not changed and history.newest_start.last(LayoutChangeWanted) is not None:
            changed = True
        elif left > 0:
            left -= 1
        else:
            break
        capacity = launcher.capacity(request.cluster, request.job)
        better = listener.replanner.better()
        if better is not None and fits(better.layout, capacity):
            better.take()
            log.warning("continuing on a better layout with %d ranks", better.layout.num_ranks)
            request = _on_layout(request, better.layout, capacity, better.saving)
        elif not fits(request.layout, capacity):
            layout = plan(smaller(request.cluster, capacity))
            request = _on_layout(request, layout, capacity)
            log.warning("the pools have become smaller; continuing with %d ranks", layout.num_ranks)
        log.warning("starting again, from the newest checkpoint")
        code = launcher.start(request, listener)
    return code


def _on_layout(
    request: LaunchRequest, layout: Layout, capacity: Capacity, saving: float | None = None
) -> LaunchRequest:
    """The request with another layout, which the next start reads."""
    layout.save(request.run.layout)
    ranks = layout.ranks_by_pool
    again = PlannedAgain(capacity=dict(capacity), ranks=ranks, saving=saving)
    events.record(request.run, again)
    return replace(request, layout=layout)


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
