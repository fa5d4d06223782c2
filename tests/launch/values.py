"""Jobs, clusters and layouts for the tests of launching, in as few words as they need."""

from pathlib import Path
from typing import Any

from heterps_hpc.cluster import Cluster, Pool, Site, SlurmOptions
from heterps_hpc.config import DataSpec, Job, LaunchSpec, ModelSpec, TrainSpec
from heterps_hpc.layout import Component, Layout, RankLayout, Shard, Stage

ROOT = Path(__file__).resolve().parents[2]
BEHAVE = "tests.launch.programs.behave"


def make_job(name: str = "test", **launch: Any) -> Job:
    return Job(
        name=name,
        model=ModelSpec(name="ctrdnn"),
        data=DataSpec(train=Path("/data/train")),
        train=TrainSpec(batch_size=64),
        launch=LaunchSpec(**{"oversubscribe": True, **launch}),
    )


def cpu_pool(**changes: Any) -> Pool:
    values: dict[str, Any] = {
        "name": "cpu",
        "partition": "cpu",
        "price_per_hour": 0.1,
        "max_nodes": 2,
        "cores_per_node": 4,
        "cores_per_rank": 1,
        "memory_per_node_gb": 1.5,
    }
    return Pool(**{**values, **changes})


def gpu_pool(**changes: Any) -> Pool:
    """Nodes of the `gpu` partition; their device is the CPU because the GPUs of tests are fake."""
    values: dict[str, Any] = {
        "name": "gpu",
        "partition": "gpu",
        "price_per_hour": 1.0,
        "max_nodes": 2,
        "cores_per_node": 2,
        "cores_per_rank": 1,
        "gpus_per_node": 2,
        "memory_per_node_gb": 1.5,
        "slurm": SlurmOptions(gres="gpu:fake"),
    }
    return Pool(**{**values, **changes})


def make_cluster(*pools: Pool, **site: Any) -> Cluster:
    return Cluster(pools=pools or (cpu_pool(), gpu_pool()), site=Site(**site))


def make_layout(cluster: Cluster, *stages: tuple[str, int]) -> Layout:
    """A layout of one-layer stages, each (pool, number of ranks), numbered by component."""
    pools = list(dict.fromkeys(pool for pool, _ in stages))
    components: list[Component] = []
    ranks: list[RankLayout] = []
    for index, name in enumerate(pools):
        pool = cluster.pool(name)
        first = len(ranks)
        for number, (where, count) in enumerate(stages):
            for replica in range(count if where == name else 0):
                ranks.append(
                    RankLayout(
                        rank=len(ranks),
                        component=index,
                        stage=number,
                        replica=replica,
                        sparse=number == 0,
                        dense=number > 0,
                        shards=_shards(replica) if number == 0 else (),
                    )
                )
        num_ranks = len(ranks) - first
        components.append(
            Component(
                pool=name,
                device=pool.device,
                partition=pool.partition,
                first_rank=first,
                num_ranks=num_ranks,
                cores_per_rank=pool.cores_per_rank,
                ranks_per_node=min(pool.ranks_per_node, num_ranks),
                num_nodes=pool.num_nodes(num_ranks),
            )
        )
    return Layout(
        job="test",
        model="ctrdnn",
        model_fingerprint="0",
        num_partitions=8,
        stages=tuple(
            Stage(pool=pool, layers=(f"layer{i}",), num_ranks=count)
            for i, (pool, count) in enumerate(stages)
        ),
        components=tuple(components),
        ranks=tuple(ranks),
    )


def _shards(replica: int) -> tuple[Shard, ...]:
    """A table of its own for each rank of the first stage."""
    return (Shard(table=f"t{replica}", first_partition=0, last_partition=8),)
