"""What is run: two workloads small enough for such nodes, and layouts of them on each cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.plan.cost_model import Choice

CLUSTERS = ("slow-and-fast", "thin-pipe", "three-kinds", "two-and-two")
ALL_NODES = "all"  # a pool of every node, whatever its kind
BATCH_SIZE = 4096  # batches much longer than the 10 ms of a quota's period, on every node
MICRO_BATCHES = 2


@dataclass(frozen=True)
class Work:
    """One workload: W1-like has more dense work, W2-like more look-ups."""

    name: str
    num_slots: int
    keys_per_sample: float
    hidden: tuple[int, ...]
    cardinality: int


WORKS = (
    Work("dense", num_slots=8, keys_per_sample=1.0, hidden=(512, 256), cardinality=5_000),
    Work("sparse", num_slots=12, keys_per_sample=10.0, hidden=(128, 64), cardinality=20_000),
)

# POOL:LAYERS:RANKS per stage; `*` is all layers that are left
LAYOUTS = {
    "slow-and-fast": {
        "dense": (
            "fast:*:1",
            "slow:*:1",
            "slow:*:2",
            "slow:*:4",
            "slow:1:1 fast:*:1",
            "slow:1:2 fast:*:1",
            "slow:1:4 fast:*:1",
            "slow:2:2 fast:*:1",
            "fast:1:1 slow:*:4",
            "slow:1:1 fast:1:1 slow:*:3",
        ),
        "sparse": (
            "fast:*:1",
            "slow:*:1",
            "slow:*:4",
            "slow:1:1 fast:*:1",
            "slow:1:2 fast:*:1",
            "slow:1:4 fast:*:1",
            "fast:1:1 slow:*:2",
        ),
    },
    "three-kinds": {
        "dense": (
            "fast:*:1",
            "large:*:2",
            "normal:*:1",
            "normal:*:2",
            "large:1:1 fast:*:1",
            "large:1:2 fast:*:1",
            "normal:1:2 fast:*:1",
            "large:1:2 normal:1:2 fast:*:1",
            "large:1:1 fast:1:1 normal:*:1",
        ),
        "sparse": (
            "fast:*:1",
            "normal:*:2",
            "large:1:2 normal:*:2",
            "large:1:2 fast:*:1",
            "normal:1:2 fast:*:1",
            "large:1:1 normal:*:1",
        ),
    },
    "two-and-two": {
        "dense": (
            "fast:*:1",
            "fast:*:2",
            "slow:*:1",
            "slow:*:2",
            "slow:1:1 fast:*:1",
            "slow:1:1 fast:*:2",
            "slow:1:2 fast:*:2",
            "slow:2:2 fast:*:1",
        ),
        "sparse": (
            "fast:*:1",
            "fast:*:2",
            "slow:*:2",
            "slow:1:1 fast:*:1",
            "slow:1:2 fast:*:1",
            "slow:1:2 fast:*:2",
        ),
    },
}
LAYOUTS["thin-pipe"] = LAYOUTS["slow-and-fast"]
QUICK = ("fast:*:1", "slow:*:1", "slow:1:1 fast:*:1", "slow:1:2 fast:*:1")


def make_job(work: Work, data: Path, num_rows: int, measured_batches: int) -> Job:
    """The workload as a job; its data are generated on first use."""
    return Job.parse(
        {
            "name": f"unlike-{work.name}",
            "model": {"name": "ctrdnn", "embedding_dim": 16, "hidden": list(work.hidden)},
            "data": {
                "train": str(data / work.name),
                "synthetic": {
                    "train_rows": num_rows,
                    "num_slots": work.num_slots,
                    "cardinality": work.cardinality,
                    "keys_per_sample": work.keys_per_sample,
                },
            },
            "train": {
                "batch_size": BATCH_SIZE,
                "micro_batches": MICRO_BATCHES,
                "staleness": 1,
                "epochs": 100,
                "evaluate_at_end": False,
                "sparse": {"optimizer": "adagrad_rowwise", "lr": 0.01},
                "dense": {"optimizer": "adagrad", "lr": 0.01},
            },
            "measure": {
                "batches": measured_batches,
                "seconds": 4.0,
                "warmup": 4,
                "rank_counts": [1, 2, 4],
            },
            "checkpoint": {"at_end": False},
            "goal": {"min_fraction_of_best": 0.5},
        },
        "benchmark",
    )


def parse_layout(text: str, cluster: Cluster, num_layers: int) -> list[Choice]:
    """`slow:1:2 fast:*:1` = the first layer on two slow ranks, all others on a fast one."""
    names = [pool.name for pool in cluster.pools]
    choices, first = [], 0
    for part in text.split():
        pool, count, ranks = part.split(":")
        last = num_layers - 1 if count == "*" else first + int(count) - 1
        choices.append(Choice(first, last, names.index(pool), int(ranks)))
        first = last + 1
    return choices


def num_ranks(text: str) -> int:
    """Ranks of a layout."""
    return sum(int(part.rpartition(":")[2]) for part in text.split())
