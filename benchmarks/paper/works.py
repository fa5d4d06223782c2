"""The paper's four models, small enough for nodes of a fraction of a core; as in the paper, most of
their work is look-ups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heterps_hpc.config import Job

CLUSTERS = ("slow-and-fast", "thin-pipe")
MODELS: dict[str, dict[str, Any]] = {
    "ctrdnn": {"name": "ctrdnn", "embedding_dim": 16, "hidden": [64, 32, 16, 16]},
    "2emb": {
        "name": "two_embedding",
        "embedding_dim": 16,
        "hidden": [64, 32],
        "second_hidden": [32, 16],
    },
    "matchnet": {
        "name": "matchnet",
        "embedding_dim": 16,
        "user_hidden": [64, 32],
        "item_hidden": [32],
    },
    "nce": {"name": "nce", "embedding_dim": 16, "hidden": [64, 32]},
}
# an item to match, or a target to tell from noise, is one key
DATA: dict[str, dict[str, int]] = {
    "bags": {"num_slots": 12, "keys_per_sample": 20},
    "one key": {"num_slots": 60, "keys_per_sample": 1},
}
FLOORS = (0.4, 0.9)  # of the best throughput: one that cheap nodes reach, one that few plans do
BATCH_SIZE = 8192  # batches much longer than the 10 ms of a quota's period, on every node


def make_job(model: str, data: Path, trial_seconds: float) -> Job:
    """One model as a job; its data are generated on first use."""
    kind = "one key" if model in ("matchnet", "nce") else "bags"
    return Job.parse(
        {
            "name": f"paper-{model}",
            "model": MODELS[model],
            "data": {
                "train": str(data / kind),
                "synthetic": {"train_rows": 120_000, "cardinality": 20_000, **DATA[kind]},
            },
            "train": {
                "batch_size": BATCH_SIZE,
                "micro_batches": 2,
                "epochs": 1000,
                "sparse": {"optimizer": "adagrad_rowwise", "lr": 0.01},
                "dense": {"optimizer": "adagrad", "lr": 0.01},
            },
            "measure": {"batches": 12, "seconds": 4.0, "warmup": 4, "rank_counts": [1, 2, 4]},
            "goal": {"min_fraction_of_best": max(FLOORS)},
            "plan": {"trial_seconds": trial_seconds},
        },
        "benchmark",
    )
