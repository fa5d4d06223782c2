"""A made-up run with every file, so that reports are tested without training."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.config import Job
from heterps_hpc.layout import (
    Component,
    Estimate,
    Layout,
    Plan,
    RankLayout,
    Shard,
    Stage,
    StageEstimate,
)
from heterps_hpc.profile import LayerInfo, Profile, TensorInfo, Timing
from heterps_hpc.rundir import RunDir

LAYERS = ("embed", "bottom", "interact", "top_1", "top_2", "top_3", "score")
EPOCH = 1_790_000_000.0


def plan(scheduler: str, shape: Sequence[tuple[str, int, int]], money: float, rate: float) -> Plan:
    """A plan of (pool, number of layers, number of ranks)."""
    stages, first = [], 0
    for pool, num_layers, num_ranks in shape:
        layers = LAYERS[first : first + num_layers]
        stages.append(Stage(pool=pool, layers=layers, num_ranks=num_ranks))
        first += num_layers
    seconds = 4096 / rate
    return Plan(
        stages=tuple(stages),
        scheduler=scheduler,
        optimum_money=0.00201,
        gap=money / 0.00201 - 1,
        estimate=Estimate(
            samples_per_second=rate,
            seconds_per_batch=seconds,
            binding_stage=len(stages) - 1,
            stages=tuple(
                StageEstimate(
                    compute_seconds=seconds * (0.5 + 0.2 * i),
                    move_seconds=seconds * 0.2,
                    seconds=seconds * (0.5 + 0.2 * i),
                )
                for i in range(len(stages))
            ),
            hours=1e6 / rate / 3600,
            money_per_hour=0.5,
            money=money,
            from_data_sheet=True,
        ),
    )


CHOSEN = plan("rl", [("cpu", 1, 2), ("gpu", 4, 1), ("cpu", 2, 1)], 0.00201, 61_000.0)


def cluster() -> Cluster:
    """A cheap pool that was measured and an expensive one from a data sheet."""
    return Cluster(
        name="made-up",
        pools=(
            Pool(name="cpu", price_per_hour=0.04, max_ranks=8, cores_per_node=4),
            Pool(name="gpu", price_per_hour=2.42, billing="node", max_nodes=2, data_sheet="v100"),
        ),
    )


def layout(name: str = "made-up-job") -> Layout:
    """Four ranks in three stages on two pools."""
    shards = [Shard(table=f"t{i}", first_partition=0, last_partition=64) for i in range(4)]
    roles = [(0, 0, 0), (0, 0, 1), (0, 2, 0), (1, 1, 0)]  # component, stage, replica
    return Layout(
        job=name,
        model="ctrdnn",
        model_fingerprint="0" * 16,
        num_partitions=64,
        stages=CHOSEN.stages,
        components=(
            Component(
                pool="cpu", device="cpu", partition="cheap", first_rank=0, num_ranks=3,
                cores_per_rank=1, ranks_per_node=3, num_nodes=1,
            ),
            Component(
                pool="gpu", device="cpu", partition=None, first_rank=3, num_ranks=1,
                cores_per_rank=1, ranks_per_node=1, num_nodes=1,
            ),
        ),
        ranks=tuple(
            RankLayout(
                rank=rank, component=component, stage=stage, replica=replica,
                sparse=stage == 0 and bool(shards[2 * replica :]), dense=stage > 0,
                shards=tuple(shards[2 * replica : 2 * replica + 2]) if stage == 0 else (),
            )
            for rank, (component, stage, replica) in enumerate(roles)
        ),
        plan=CHOSEN,
    )  # fmt: skip


def profile() -> Profile:
    """Sizes of tensors, one of which skips a stage."""
    tensors = (("rows", "embed", ("interact", "score"), 1664.0), ("h3", "top_2", ("top_3",), 512.0))
    return Profile(
        model="ctrdnn",
        model_fingerprint="0" * 16,
        batch_size=4096,
        layers=tuple(LayerInfo(name=name, kind="fc") for name in LAYERS),
        tensors=tuple(
            TensorInfo(name=name, writer=writer, readers=readers, bytes_per_sample=size)
            for name, writer, readers, size in tensors
        ),
        timings=tuple(
            Timing(layer=name, pool=pool, compute_seconds=0.01, estimated=pool == "gpu")
            for name in LAYERS
            for pool in ("cpu", "gpu")
        ),
    )


def planning() -> dict[str, Any]:
    """What the planner considered."""
    baselines = [
        plan("greedy", [("cpu", 2, 3), ("gpu", 5, 1)], 0.0027, 66_000.0),
        plan("heuristic", [("cpu", 1, 4), ("gpu", 6, 1)], 0.0031, 70_000.0),
        plan("gpu-only", [("gpu", 7, 2)], 0.0094, 93_000.0),
    ]
    frontier = [
        plan("exact", [("cpu", 7, 1)], 0.0009 + 2.5e-10 * rate**4 / 3, 1000.0 * rate)
        for rate in (20, 30, 40, 50, 61, 70, 80)
    ]
    return {
        "version": 1,
        "plan": CHOSEN.model_dump(mode="json"),
        "outcome": [
            "$0.00201 at 61,000 samples/s.",
            "20 % below the floor it would cost 3.1 times less.",
        ],
        "floor": 50_000.0,
        "best": 93_000.0,
        "num_placements": 12_345,
        "scheduler_seconds": 1.4,
        "estimated_pools": ["gpu"],
        "alternatives": [baseline.model_dump(mode="json") for baseline in baselines],
        "without_plan": ["cpu-only"],
        "memory": [
            {"tables": 3e9, "snapshot": 1e9, "dense": 5e8, "dense_on_device": False, "limit": 8e9},
            {"tables": 0.0, "snapshot": 0.0, "dense": 2e9, "dense_on_device": True, "limit": 4e9},
            {"tables": 0.0, "snapshot": 0.0, "dense": 1e8, "dense_on_device": False, "limit": 8e9},
        ],
        "runners_up": [
            {
                "what": "next best placement",
                "plan": plan("exact", [("cpu", 2, 2), ("gpu", 5, 1)], 0.00221, 60_000.0).model_dump(
                    mode="json"
                ),
                "loses": "takes 1.7 % longer and costs 8.1 % more per hour",
            }
        ],
        "learning_curve": [
            {"seconds": 0.1 * i, "placements": 300 * i, "money": max(0.00201, 0.005 - 0.0004 * i)}
            for i in range(9)
        ],
        "frontier": [point.model_dump(mode="json") for point in frontier],
    }


def metrics() -> list[dict[str, Any]]:
    """Training lines and two evaluations."""
    lines: list[dict[str, Any]] = [
        {
            "kind": "train",
            "step": step,
            "epoch": 0,
            "samples": 4096 * step,
            "seconds": step * 0.066,
            "loss": 0.45 + 0.24 * math.exp(-step / 60),
            "samples_per_second": 62_000.0 + 900 * math.sin(step),
            "auc": 0.74 - 0.2 * math.exp(-step / 60),
        }
        for step in range(10, 245, 10)
    ]
    lines += [
        {"kind": "evaluation", "step": step, "samples": 20_000, "auc": auc, "log_loss": loss}
        for step, auc, loss in ((120, 0.716, 0.497), (244, 0.7375, 0.4813))
    ]
    return lines


def summary() -> dict[str, Any]:
    """Totals as the ranks write them."""
    sparse = {"pull": 3.2, "push": 4.9, "wait gradients": 6.0, "send": 0.8, "read": 0.9}
    dense = {"forward": 4.1, "backward": 7.7, "update": 0.9, "wait inputs": 1.2, "send": 0.5}
    ends = [(0, "sparse", sparse, "3"), (0, "sparse", sparse, "3"), (2, "dense", dense, "3")]
    ranks = [
        {
            "rank": rank,
            "role": role,
            "stage": stage,
            "component": 0,
            "host": "c1",
            "seconds": seconds,
            "tables": {f"t{rank}": {"rows": 1500, "evicted": 20}} if stage == 0 else {},
            "bytes_sent": {"ROWS" if stage == 0 else "ACTIVATION_GRADIENTS": {peer: 8.3e8}},
            "messages_sent": {"ROWS" if stage == 0 else "ACTIVATION_GRADIENTS": {peer: 976}},
        }
        for rank, (stage, role, seconds, peer) in enumerate(ends)
    ]
    ranks.append(
        {
            "rank": 3, "role": "dense", "stage": 1, "component": 1, "host": "g1", "seconds": dense,
            "bytes_sent": {"ROW_GRADIENTS": {"0": 8e8, "1": 8e8}, "ACTIVATIONS": {"2": 5e8}},
            "messages_sent": {"ROW_GRADIENTS": {"0": 976, "1": 976}, "ACTIVATIONS": {"2": 976}},
        }
    )  # fmt: skip
    return {
        "version": 1,
        "steps": 244,
        "samples": 999_424,
        "seconds": 16.1,
        "samples_per_second": 62_000.0,
        "skipped_steps": 0,
        "stopped": False,
        "reducer": "horovod",
        "evaluation": {"auc": 0.7375, "log_loss": 0.4813, "normalised_entropy": 0.88},
        "ranks": ranks,
    }


def trace() -> list[dict[str, Any]]:
    """Three steps of four ranks."""
    phases = {
        0: (("read", 3), ("pull", 12), ("send", 4), ("wait gradients", 26), ("push", 18)),
        1: (("read", 3), ("pull", 13), ("send", 4), ("wait gradients", 24), ("push", 19)),
        2: (("wait inputs", 20), ("forward", 14), ("backward", 22), ("reduce", 3), ("update", 5)),
        3: (("wait inputs", 8), ("forward", 18), ("backward", 29), ("reduce", 3), ("update", 5)),
    }
    events = []
    for rank, parts in phases.items():
        now = 1e9 + 3e3 * rank
        for step in range(20, 23):
            for name, milliseconds in parts:
                dur = milliseconds * 1e3
                args = {"step": step}
                events.append(
                    {"name": name, "ph": "X", "pid": rank, "tid": 0, "ts": now, "dur": dur}
                    | {"args": args}
                )
                now += dur
    return events


def history() -> list[dict[str, Any]]:
    """Two starts: a node died, the second one ran to the end."""
    return [
        {"event": "start", "time": EPOCH, "host": "c1", "launcher": "mpirun", "restart": 0},
        {"event": "rank_end", "time": EPOCH + 9, "host": "c1", "rank": 2, "code": 4},
        {"event": "end", "time": EPOCH + 10, "host": "c1", "code": 4, "restart": 0},
        {"event": "start", "time": EPOCH + 12, "host": "c1", "launcher": "mpirun", "restart": 1},
        {"event": "end", "time": EPOCH + 32, "host": "c1", "code": 0, "restart": 1},
    ]


def job(name: str = "made-up-job") -> Job:
    """A small job."""
    return Job.parse(
        {
            "name": name,
            "model": {"name": "ctrdnn"},
            "data": {"train": "data/train"},
            "train": {"batch_size": 4096, "micro_batches": 4},
            "goal": {"min_samples_per_second": 50_000},
        },
        "made-up",
    )


def write_run(path: Path, name: str = "made-up-job") -> RunDir:
    """The whole run on disk."""
    run = RunDir(path).create()
    job(name).save(run.job)
    cluster().save(run.cluster)
    profile().save(run.profile)
    layout(name).save(run.layout)
    run.schedulers.write_text(json.dumps(planning()))
    run.summary.write_text(json.dumps(summary()))
    run.trace.write_text(json.dumps({"traceEvents": trace()}))
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in metrics()))
    run.history.write_text("".join(json.dumps(line) + "\n" for line in history()))
    saved = run.checkpoints / "120"
    saved.mkdir(exist_ok=True)
    (saved / "manifest.json").write_text("{}")
    (saved / "table-0.h5").write_bytes(b"0" * 123_456)
    return run
