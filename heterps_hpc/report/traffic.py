"""Bytes between stages: per sample, by what they carry."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from heterps_hpc.report.inputs import Run

LANES = {
    "ROWS": "pooled rows",
    "ROW_GRADIENTS": "gradients of rows",
    "ACTIVATIONS": "activations",
    "ACTIVATION_GRADIENTS": "gradients of activations",
}


@dataclass(frozen=True)
class Flow:
    """What one stage sent to another in one lane."""

    source: str
    target: str
    carries: str
    bytes_per_sample: float
    messages_per_batch: float
    total_bytes: float
    crosses_pools: bool


def flows(run: Run) -> list[Flow]:
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
            for lane, peers in counts.items():
                for peer, amount in peers.items():
                    other = stage_of.get(int(peer)) if peer.isdigit() else None
                    total[rank.stage, other, lane] += amount
    found = []
    for (source, target, lane), amount in num_bytes.items():
        source_name, source_pool = end(source)
        target_name, target_pool = end(target)
        found.append(
            Flow(
                source_name,
                target_name,
                LANES.get(lane, lane.replace("_", " ").lower()),
                amount / summary.samples,
                messages[source, target, lane] / max(summary.steps, 1),
                amount,
                source_pool != target_pool,
            )
        )
    return sorted(found, key=lambda flow: -flow.total_bytes)
