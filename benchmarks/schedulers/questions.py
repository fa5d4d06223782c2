"""The paper's planning questions: its four models on CPU cores and V100s, and simulated pools."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.config import Job
from heterps_hpc.dataset import Schema, SlotSpec
from heterps_hpc.models import build_model
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.problem import make_problem
from heterps_hpc.profile import Profile
from heterps_hpc.profiling.data_sheets import profile_from_sheets
from heterps_hpc.runtime.measure.model_info import layer_info, table_loads, tensor_info
from heterps_hpc.runtime.shapes import tensor_shapes

BATCH_SIZE = 4096
MICRO_BATCHES = 8
NUM_SAMPLES = 1e9
FLOOR = 200_000.0  # samples per second

SCHEMA = Schema(
    slots=(
        *(
            SlotSpec(name=f"s{i}", kind="many", cardinality=2_000_000, mean_keys=8.0)
            for i in range(25)
        ),
        SlotSpec(name="item", cardinality=5_000_000),
    ),
    dense_columns=tuple(f"d{i}" for i in range(13)),
    labels=("click",),
)
MODELS: dict[str, dict[str, Any]] = {
    "ctrdnn-16": {"name": "ctrdnn", "depth": 16, "width": 512, "embedding_dim": 16},
    "matchnet": {
        "name": "matchnet",
        "item_slot": "item",
        "user_hidden": [512, 256, 128],
        "item_hidden": [256, 128],
        "tower_width": 64,
    },
    "two_embedding": {
        "name": "two_embedding",
        "hidden": [512, 256, 128],
        "second_slots": ["item"],
        "second_hidden": [256, 128, 64],
    },
    "nce": {"name": "nce", "target_slot": "item", "num_noise": 16, "hidden": [512, 256]},
}


def ctrdnn(depth: int) -> dict[str, Any]:
    """The paper's ctrdnn with that many layers."""
    return {"name": "ctrdnn", "depth": depth, "width": 512, "embedding_dim": 16}


def paper_pools() -> list[Pool]:
    """CPU cores at 0.04 $/h and V100s at 2.42 $/h."""
    return [
        Pool(
            name="cpu",
            price_per_hour=0.04,
            max_ranks=240,
            cores_per_node=40,
            memory_per_node_gb=384,
            data_sheet="cpu_core",
        ),
        Pool(
            name="v100",
            device="cuda",
            price_per_hour=2.42,
            max_ranks=32,
            cores_per_node=40,
            gpus_per_node=8,
            memory_per_node_gb=384,
            gpu_memory_gb=16,
            data_sheet="v100",
        ),
    ]


def sizes_only(model_spec: dict[str, Any]) -> Profile:
    """A profile with the sizes of a model and no times yet."""
    job = Job.parse(
        {
            "name": "schedulers",
            "model": model_spec,
            "data": {"train": "none"},
            "train": {"batch_size": BATCH_SIZE},
        },
        "benchmark",
    )
    model = build_model(job.model, SCHEMA)
    shapes = tensor_shapes(model, len(SCHEMA.dense_columns))
    return Profile(
        model=model.name,
        model_fingerprint=model.fingerprint(),
        batch_size=BATCH_SIZE,
        layers=tuple(layer_info(model, shapes, job, SCHEMA)),
        tensors=tuple(tensor_info(model, shapes, job)),
        tables=tuple(table_loads(model, job, SCHEMA)),
        timings=(),
    )


def simulated(num_pools: int, profile: Profile, seed: int = 1) -> tuple[Profile, list[Pool]]:
    """Pools around the paper's two kinds, their speeds and prices drawn at random."""
    rng = np.random.default_rng([seed, num_pools])
    kinds = paper_pools()
    pools = [
        kinds[i % 2].model_copy(
            update={
                "name": f"{kinds[i % 2].name}{i // 2}",
                "price_per_hour": kinds[i % 2].price_per_hour * float(rng.lognormal(0, 0.4)),
                "max_ranks": int(kinds[i % 2].rank_limit * rng.uniform(0.3, 1.0)),
            }
        )
        for i in range(num_pools)
    ]
    described = profile_from_sheets(profile, pools)
    speeds = {pool.name: rng.lognormal(0, 0.4) for pool in pools}
    own = {timing.layer: rng.lognormal(0, 0.3, size=num_pools) for timing in described.timings}
    names = [pool.name for pool in pools]
    timings = tuple(
        timing.model_copy(
            update={
                "compute_seconds": timing.compute_seconds
                * float(speeds[timing.pool] * own[timing.layer][names.index(timing.pool)])
            }
        )
        for timing in described.timings
    )
    return described.model_copy(update={"timings": timings}), pools


def question(model_spec: dict[str, Any], num_pools: int = 2, floor: float = FLOOR) -> StageTable:
    """One question; two pools are the paper's own, more are simulated."""
    profile = sizes_only(model_spec)
    if num_pools == 2:
        pools = paper_pools()
        profile = profile_from_sheets(profile, pools)
    else:
        profile, pools = simulated(num_pools, profile)
    problem = make_problem(
        profile,
        Cluster(pools=tuple(pools)),
        batch_size=BATCH_SIZE,
        num_samples=NUM_SAMPLES,
        micro_batches=MICRO_BATCHES,
        staleness=1,
        floor=floor,
    )
    return StageTable(problem)
