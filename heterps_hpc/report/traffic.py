"""Bytes between stages: per sample, by what they carry."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from heterps_hpc.report.inputs import RecordedRun

KINDS = {
    "ROWS": "pooled rows",
    "ROW_GRADIENTS": "gradients of rows",
    "ACTIVATIONS": "activations",
    "ACTIVATION_GRADIENTS": "gradients of activations",
}


@dataclass(frozen=True)
class Flow:
    """What one stage sent to another of one kind of message."""

    source: str
    target: str
    carries: str
    bytes_per_sample: float
    messages_per_batch: float
    total_bytes: float
    crosses_pools: bool


def flows(run: RecordedRun) -> list[Flow]:
    """The run's traffic, heaviest first."""
    summary = run.summary
    if summary is None or not summary.samples:
        return []
    stage_of = {rank.rank: rank.stage for rank in summary.ranks}
    pools = [stage.pool for stage in run.layout.stages] if run.layout else []

    def end(stage: int | None) -> tuple[str, str]:
        pool = pools[stage] if stage is not None and 0 <= stage < len(pools) else ""
        name = "stage ?" if stage is None else f"stage {stage}"
        return (f"{name} ({pool})" if pool else name), pool

    num_bytes: dict[tuple[int, int | None, str], float] = defaultdict(float)
    messages: dict[tuple[int, int | None, str], float] = defaultdict(float)
    for rank in summary.ranks:
        for counts, total in ((rank.bytes_sent, num_bytes), (rank.messages_sent, messages)):
            for kind, peers in counts.items():
                for peer, amount in peers.items():
                    other = stage_of.get(int(peer)) if peer.isdigit() else None
                    total[rank.stage, other, kind] += amount
    found = []
    for (source, target, kind), amount in num_bytes.items():
        source_name, source_pool = end(source)
        target_name, target_pool = end(target)
        found.append(
            Flow(
                source_name,
                target_name,
                KINDS.get(kind, kind.replace("_", " ").lower()),
                amount / summary.samples,
                messages[source, target, kind] / max(summary.steps, 1),
                amount,
                source_pool != target_pool,
            )
        )
    found += [_allreduce(run, stage, end(stage)[0]) for stage in sorted(set(stage_of.values()))]
    moved = [flow for flow in found if flow.total_bytes]
    return sorted(moved, key=lambda flow: -flow.total_bytes)


def _allreduce(run: RecordedRun, stage: int, name: str) -> Flow:
    """What the replicas of a stage send to sum dense gradients, if they sum in a ring.

    2·(k−1)/k of the buffer by each of k ranks is the least that any algorithm needs.
    """
    assert run.summary is not None
    ranks = [rank for rank in run.summary.ranks if rank.stage == stage]
    busy = [rank for rank in ranks if rank.bytes_reduced]
    share = 2 * (len(busy) - 1) / max(len(busy), 1)
    total = share * sum(rank.bytes_reduced for rank in busy)
    sums = max((rank.reductions for rank in busy), default=0.0)
    return Flow(
        name,
        name,
        "dense gradients, summed by allreduce",
        total / run.summary.samples,
        sums / max(run.summary.steps, 1),
        total,
        crosses_pools=False,
    )
