"""A pool on a partition that Slurm does not have is refused before anything is measured."""

import pytest

from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.errors import UserError
from heterps_hpc.launch.slurm import partitions


def cluster_on(*names: str | None) -> Cluster:
    return Cluster(
        pools=tuple(
            Pool(name=f"p{index}", partition=name, price_per_hour=1.0, max_ranks=1)
            for index, name in enumerate(names)
        )
    )


def test_pools_must_be_on_partitions_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "call", lambda *_: "slow\nfast\nfast\n")
    partitions.check_partitions(cluster_on("slow", "fast", "slow,fast", None))
    with pytest.raises(UserError) as error:
        partitions.check_partitions(cluster_on("slow", "quick"))
    assert str(error.value) == (
        "pool 'p1' is on partition 'quick', which Slurm does not have; it has slow, fast"
    )
