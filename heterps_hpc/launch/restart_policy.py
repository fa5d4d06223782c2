"""Restarts: a failed run goes on from its last checkpoint, on a new layout if nodes are gone.

Any layout resumes any checkpoint, so fewer nodes only mean another plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from heterps_hpc import history
from heterps_hpc.cluster import Cluster
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.slurm.slurm_cli import call
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir

log = logging.getLogger(__name__)

Start = Callable[[Layout], ExitCode]
Room = Mapping[str, int]  # ranks that each pool can give now
Plan = Callable[[Cluster], Layout]

_AGAIN = (ExitCode.RANK_FAILED, ExitCode.STALLED)


def run_with_restarts(
    run: RunDir,
    cluster: Cluster,
    layout: Layout,
    start: Start,
    *,
    max_restarts: int,
    room: Callable[[], Room],
    plan: Plan,
) -> ExitCode:
    """Start until the run is done, stopped, or has failed too often.

    `start` starts the ranks of a layout once and waits for them; they go on from the newest
    checkpoint by themselves. `plan` decides anew for a cluster that has become smaller.
    """
    code = start(layout)
    for restart in range(1, max_restarts + 1):
        if code not in _AGAIN:
            break
        now = room()
        if not fits(layout, now):
            layout = plan(smaller(cluster, now))
            layout.save(run.layout)
            history.record(run, "planned_again", restart=restart, room=dict(now))
            log.warning("the pools have become smaller; going on with %d ranks", layout.num_ranks)
        log.warning("restart %d of %d, from the newest checkpoint", restart, max_restarts)
        code = start(layout)
    return code


def fits(layout: Layout, room: Room) -> bool:
    """Whether every component of a layout still finds room."""
    return all(part.num_ranks <= room.get(part.pool, 0) for part in layout.components)


def smaller(cluster: Cluster, room: Room) -> Cluster:
    """The cluster as it is now; pools that can give nothing are left out."""
    pools = tuple(
        pool.model_copy(update={"max_ranks": min(pool.rank_limit, room[pool.name])})
        for pool in cluster.pools
        if room.get(pool.name, 0) > 0
    )
    if not pools:
        raise UserError(
            f"no pool of cluster {cluster.name!r} has a node left; the checkpoints stay: go on "
            "with --resume when nodes are back"
        )
    names = {pool.name for pool in pools}
    links = tuple(link for link in cluster.links if set(link.pools) <= names)
    return cluster.model_copy(update={"pools": pools, "links": links})


def slurm_room(cluster: Cluster) -> Room:
    """Ranks that the nodes in working order of each pool's partition can hold."""
    room = {}
    for pool in cluster.pools:
        if pool.partition is None:
            continue
        up = call(
            "sinfo",
            "--noheader",
            f"--partition={pool.partition}",
            "--states=idle,mixed,allocated,completing,reserved",
            "--format=%D",
        )
        nodes = sum(int(word) for word in up.split() if word.isdigit())
        room[pool.name] = min(pool.rank_limit, nodes * pool.ranks_per_node)
    return room


def local_room(cluster: Cluster, num_cores: int, *, oversubscribe: bool) -> Room:
    """Ranks that this machine can hold of each pool."""
    if oversubscribe:
        return {pool.name: pool.rank_limit for pool in cluster.pools}
    return {pool.name: min(pool.rank_limit, num_cores) for pool in cluster.pools}
