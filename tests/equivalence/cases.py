"""What a case of the equivalence suite is: one job, its data and its layout."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise as neighbours
from pathlib import Path
from typing import Any

from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.config import Job, ModelSpec
from heterps_hpc.layout import Layout, Stage
from heterps_hpc.model import Model
from heterps_hpc.models import build_model
from heterps_hpc.sharding import bind_plan

HERE = Path(__file__).resolve().parent
OWN = HERE.parents[1] / "examples" / "own_model"
POOLS = ("cpu", "gpu")
DEVICE = os.environ.get("HETERPS_TEST_DEVICE", "cpu")  # of all pools
CLUSTER = Cluster(
    pools=tuple(
        Pool(
            name=pool,
            device=DEVICE,
            price_per_hour=1.0,
            max_ranks=8,
            cores_per_node=8,
            gpus_per_node=8,
        )
        for pool in POOLS
    )
)
NUM_PARTITIONS = 6
BATCH_SIZE = 40  # 211 rows: five whole batches and a short one of 11
NUM_STEPS = 8  # into the second epoch, past the short batch

MODELS: dict[str, dict[str, Any]] = {
    "ctrdnn": {"name": "ctrdnn", "embedding_dim": 4, "hidden": [9, 5], "init_scale": 0.3},
    "two_embedding": {
        "name": "two_embedding",
        "embedding_dim": 3,
        "hidden": [7],
        "second_slots": ["page", "tags"],
        "second_dim": 2,
        "second_hidden": [5],
        "init_scale": 0.3,
        "pooling": "mean",
    },
    "matchnet": {
        "name": "matchnet",
        "embedding_dim": 4,
        "num_negatives": 3,
        "user_hidden": [8],
        "item_hidden": [6],
        "tower_width": 5,
        "init_scale": 0.3,
    },
    "nce": {
        "name": "nce",
        "embedding_dim": 3,
        "hidden": [6],
        "num_noise": 3,
        "output_dim": 4,
        "dropout": 0.2,
        "init_scale": 0.3,
    },
    "mixed": {"file": str(HERE / "models_file.py"), "shape": "mixed"},
    "late": {"file": str(HERE / "models_file.py"), "shape": "late"},
}

# users' own models, as the examples show them; a few cases each beyond the product
EXAMPLES: dict[str, dict[str, Any]] = {
    "wide_and_deep": {"file": str(OWN / "wide_and_deep.py"), "dim": 3, "width": 6},
    "sequence": {"file": str(OWN / "sequence.py"), "history": "history"},
}
MODELS |= EXAMPLES

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {
        "sparse": {"optimizer": "adagrad", "lr": 0.05, "eps": 1e-4},
        "dense": {"optimizer": "sgd", "lr": 0.1},
        "reducer": "mpi",
    },
    "evaluate": {
        "sparse": {"optimizer": "adagrad", "lr": 0.05, "eps": 1e-4},
        "dense": {"optimizer": "sgd", "lr": 0.1},
        "reducer": "mpi",
        "evaluate_every": 3,
        "evaluate_at_end": True,
    },
    "adam": {
        "sparse": {
            "optimizer": "adam",
            "lr": 0.01,
            "eps": 1e-4,
            "schedule": {"kind": "step", "step_every": 2, "step_factor": 0.5},
        },
        "dense": {
            "optimizer": "adam",
            "lr": 0.01,
            "eps": 1e-4,
            "schedule": {"kind": "cosine", "warmup_steps": 3},
        },
        "reducer": "horovod",
        "tables": {"num_partitions": NUM_PARTITIONS, "threads": 2},
    },
    "clip": {
        "sparse": {
            "optimizer": "adagrad_rowwise",
            "lr": 0.05,
            "eps": 1e-4,
            "clip_norm": 0.003,
            "weight_decay": 0.01,
        },
        "dense": {
            "optimizer": "adamw",
            "lr": 0.01,
            "eps": 1e-4,
            "weight_decay": 0.1,
            "clip_norm": 0.05,
        },
        "reducer": "mpi",
    },
    "weight": {
        "sparse": {"optimizer": "sgd", "lr": 0.5},
        "dense": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "clip_norm": 0.1},
        "reducer": "horovod",
    },
}

# batches whose loss is not a number are passed over; a few cases beyond the product
SKIPPING: dict[str, dict[str, Any]] = {
    "nan": {
        "sparse": {"optimizer": "adam", "lr": 0.01, "eps": 1e-4},
        "dense": {"optimizer": "adam", "lr": 0.01, "eps": 1e-4, "clip_norm": 0.05},
        "reducer": "mpi",
        "on_nan": "skip",
    }
}
VARIANTS |= SKIPPING

# the plain optimizers, with gradients summed in other ways; a few cases beyond the product
SUMMED: dict[str, dict[str, Any]] = {
    "torch": {**VARIANTS["plain"], "reducer": "torch"},
    "fp16 gradients": {
        **VARIANTS["plain"],
        "dense": {"optimizer": "sgd", "lr": 0.1, "compression": "fp16"},
    },
}
VARIANTS |= SUMMED

# rows of two bytes in memory; a few cases beyond the product
HALVES: dict[str, dict[str, Any]] = {
    each: {
        **VARIANTS[like],
        "tables": {"num_partitions": NUM_PARTITIONS, "precision": each},
    }
    for each, like in (("float16", "clip"), ("bfloat16", "plain"))
}
VARIANTS |= HALVES


def _cut(model: Model, *places: int) -> list[tuple[str, ...]]:
    names = [layer.name for layer in model.layers]
    bounds = [0, *places, len(names)]
    return [tuple(names[a:b]) for a, b in neighbours(bounds)]


def _whole(model: Model) -> list[tuple[str, ...]]:
    return _cut(model)


def _tables_first(model: Model) -> list[tuple[str, ...]]:
    first = next(i for i, layer in enumerate(model.layers) if layer.is_embedding)
    return _cut(model, first + 1)


def _there_and_back(model: Model) -> list[tuple[str, ...]]:
    first = next(i for i, layer in enumerate(model.layers) if layer.is_embedding)
    return _cut(model, first + 1, max(first + 2, len(model.layers) - 2))


def _tables_last(model: Model) -> list[tuple[str, ...]]:
    last = max(i for i, layer in enumerate(model.layers) if layer.is_embedding)
    return _cut(model, last) if last else _cut(model)


def _each(model: Model) -> list[tuple[str, ...]]:
    """As many stages as five ranks allow, cut at the front, where tables and towers are."""
    return _cut(model, *range(1, min(5, len(model.layers))))


@dataclass(frozen=True)
class Shape:
    """How a model is cut, and how many ranks each piece gets; pools take turns."""

    cut: Callable[[Model], list[tuple[str, ...]]]
    num_ranks: tuple[int, ...]
    heavy_table: bool = False  # the first table outweighs all others, so it is split
    bare_rank: bool = False  # rank 1 gives all its tables to rank 0


LAYOUTS: dict[str, Shape] = {
    "1": Shape(_whole, (1,)),
    "2": Shape(_whole, (2,)),
    "3": Shape(_whole, (3,)),
    "1+1": Shape(_tables_first, (1, 1)),
    "2+1": Shape(_tables_first, (2, 1)),
    "1+2": Shape(_tables_first, (1, 2)),
    "2+2": Shape(_tables_first, (2, 2)),
    "3+2": Shape(_tables_first, (3, 2)),
    "1+3": Shape(_tables_first, (1, 3)),
    "cpu-gpu-cpu": Shape(_there_and_back, (1, 1, 1)),
    "cpu2-gpu1-cpu2": Shape(_there_and_back, (2, 1, 2)),
    "tables last": Shape(_tables_last, (1, 2)),
    "tables last, 2+2": Shape(_tables_last, (2, 2)),
    "split slot": Shape(_tables_first, (3, 1), heavy_table=True),
    "split slot, one stage": Shape(_whole, (3,), heavy_table=True),
    "rank without slots": Shape(_whole, (3,), bare_rank=True),
    "stage per layer": Shape(_each, (1, 1, 1, 1, 1)),
}


@dataclass(frozen=True)
class Case:
    """One job under one layout."""

    model: str
    layout: str
    micro_batches: int
    staleness: int
    precision: str
    variant: str
    wire: str = "float32"

    @property
    def name(self) -> str:
        """As pytest shows it."""
        return (
            f"{self.model}-{self.layout}-m{self.micro_batches}-s{self.staleness}"
            f"-{self.precision}-{self.variant}{'-' + self.wire if self.wire != 'float32' else ''}"
        ).replace(" ", "_")

    @property
    def rounds(self) -> bool:
        """Whether values are rounded at places that the layout decides on."""
        return self.precision == "bf16" or self.wire != "float32"

    @property
    def compared_as(self) -> str:
        """The precision whose tolerance holds."""
        return "bf16" if self.variant in HALVES else self.precision

    @property
    def oracle(self) -> Case:
        """One case for all that learn the same: without rounding, any layout and micro-batches."""
        return self if self.rounds else replace(self, layout="1", micro_batches=1)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def make_job(case: Case, data: Path) -> Job:
    """The job of a case on the click logs in `data`."""
    log = case.variant if case.variant in ("weight", "nan") else "plain"
    test = {"test": str(data / "test")} if case.variant == "evaluate" else {}
    return Job.parse(
        {
            "name": case.name,
            "model": MODELS[case.model],
            "data": {"train": str(data / log), **test},
            "train": {
                "batch_size": BATCH_SIZE,
                "micro_batches": case.micro_batches,
                "staleness": case.staleness,
                "steps": NUM_STEPS,
                "epochs": None,
                "seed": 5,
                "precision": case.precision,
                "wire": case.wire,
                "metrics_every": 1,
                "evaluate_at_end": False,
                "tables": {"num_partitions": NUM_PARTITIONS},
                **VARIANTS[case.variant],
            },
            "checkpoint": {"at_end": False},
        },
        case.name,
    )


def make_model(job: Job, manifest: Any) -> Model:
    """The model of a job."""
    spec: ModelSpec = job.model
    return build_model(spec, manifest)


def make_layout(case: Case, job: Job, model: Model) -> Layout:
    """The layout of a case: pools take turns, so neighbours always differ."""
    shape = LAYOUTS[case.layout]
    cuts = shape.cut(model)
    stages = tuple(
        Stage(pool=POOLS[index % 2], layers=layers, num_ranks=count)
        for index, (layers, count) in enumerate(zip(cuts, shape.num_ranks, strict=False))
    )
    loads = {table.name: 1.0 for table in model.tables}
    if shape.heavy_table:
        loads[model.tables[0].name] = 3.0 * len(loads)
    layout = bind_plan(
        stages,
        model=model,
        cluster=CLUSTER,
        job=job.name,
        num_partitions=job.train.tables.num_partitions,
        table_loads=loads,
    )
    return _strip_rank_1(layout) if shape.bare_rank else layout


def _strip_rank_1(layout: Layout) -> Layout:
    first, second, *rest = layout.ranks
    first = first.model_copy(update={"shards": first.shards + second.shards})
    second = second.model_copy(update={"shards": (), "sparse": False})
    return layout.model_copy(update={"ranks": (first, second, *rest)})
