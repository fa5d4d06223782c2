"""A ping between two ranks: how fast is the link, and does it carry us at all?

Posted and polled with a time limit, because a firewall between partitions shows itself as silence.
"""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np
from mpi4py import MPI

from heterps_hpc.cluster import Link
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout
from heterps_hpc.profiling.measurement import LinkTime

_LIMIT_SECONDS = 30.0
_NUM_ROUNDS = 20
_BLOCK_BYTES = 4 << 20


class _NoAnswer(RuntimeError):
    """The other side did not answer in time."""


def ping_components(comm: MPI.Intracomm, layout: Layout) -> list[Link]:
    """Latency and bandwidth between the first ranks of every two components, on those that lead.

    A rank without an answer raises at once: where the network fails, so would a vote about it.
    """
    links = []
    for a, b in combinations(layout.components, 2):
        if comm.rank not in (a.first_rank, b.first_rank):
            continue
        leads = comm.rank == a.first_rank
        peer = b.first_rank if leads else a.first_rank
        try:
            link = _measure(comm, peer, leads=leads)
        except _NoAnswer:
            raise UserError(
                f"no answer within {_LIMIT_SECONDS:.0f} s from rank {peer} to rank {comm.rank}: "
                f"the network between pools {a.pool!r} and {b.pool!r} does not carry MPI; check "
                "firewalls, and choose the right interface for it in `site.environment`"
            ) from None
        if leads:
            links.append(Link(pools=(a.pool, b.pool), estimated=False, **link.model_dump()))
    return links


def ping_ends(comm: MPI.Intracomm) -> LinkTime | None:
    """The link between the first and the last rank, known to all; None if there is only one."""
    last = comm.size - 1
    link = None
    if last > 0 and comm.rank in (0, last):
        link = _measure(comm, last - comm.rank, leads=comm.rank == 0)
    known: LinkTime | None = comm.bcast(link)
    return known


def _measure(comm: MPI.Intracomm, peer: int, *, leads: bool) -> LinkTime:
    """Latency and bandwidth to another rank; both sides call it."""
    small = np.zeros(8, dtype=np.uint8)
    large = np.zeros(_BLOCK_BYTES, dtype=np.uint8)
    _round_trip(comm, peer, small, leads)  # opens the connection
    latency, bulk = (
        # the first quartile: the rest is scheduling, not the link
        float(np.quantile([_round_trip(comm, peer, buffer, leads) for _ in range(rounds)], 0.25))
        / 2
        for buffer, rounds in ((small, _NUM_ROUNDS), (large, _NUM_ROUNDS))
    )
    return link_time(latency, bulk)


def link_time(latency: float, bulk: float) -> LinkTime:
    """A link whose small messages and whose blocks of _BLOCK_BYTES take so many seconds.

    On a busy node a small message can take as long as a block, since both only wait for a core; so
    at most half of a block's time counts as latency.
    """
    latency, bulk = max(latency, 1e-9), max(bulk, 1e-8)
    rate = _BLOCK_BYTES / max(bulk - latency, bulk / 2)
    return LinkTime(latency_seconds=latency, bytes_per_second=rate)


def _round_trip(comm: MPI.Intracomm, peer: int, buffer: np.ndarray, leads: bool) -> float:
    started = time.perf_counter()
    if leads:
        _finish(comm.Isend(buffer, peer))
        _finish(comm.Irecv(buffer, peer))
    else:
        _finish(comm.Irecv(buffer, peer))
        _finish(comm.Isend(buffer, peer))
    return time.perf_counter() - started


def _finish(request: MPI.Request) -> None:
    give_up = time.monotonic() + _LIMIT_SECONDS
    while not request.Test():
        if time.monotonic() > give_up:
            raise _NoAnswer
        time.sleep(0)
