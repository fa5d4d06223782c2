"""Measure, predict and run on nodes that really differ: the short form of benchmarks.unlike."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.unlike.cases import Work
from benchmarks.unlike.runs import Bench, LayoutRun, cluster_up
from heterps_hpc.cluster import Cluster
from slurm.dev_cluster.cluster import missing_programs, why_not_unlike
from slurm.dev_cluster.spec import ClusterSpec

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]

NODES = """
nodes:
  s1: {partition: slow, cores: 0.5, memory_mb: 1500}
  f1: {partition: fast, cores: 1.0, memory_mb: 1500}
links: {s1: 300, f1: 300}
pools: {slow: {price_per_hour: 0.04}, fast: {price_per_hour: 0.4}}
"""
WORK = Work("short", num_slots=8, keys_per_sample=1.0, hidden=(512, 256), cardinality=2_000)
FACTOR = 1.8  # a busy machine; a plan that adds up what overlaps is off by more


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two unlike nodes behind links of 300 Mbit/s."""
    plain = ClusterSpec(Path("/tmp/x"))
    reason = ", ".join(missing_programs(plain)) or why_not_unlike(plain)
    if reason or len(os.sched_getaffinity(0)) < 2:
        pytest.skip(f"nodes that differ cannot be made here: {reason or 'one core'}")
    file = tmp_path_factory.mktemp("nodes") / "short.yaml"
    file.write_text(NODES)
    with cluster_up(str(file)) as cluster:
        yield cluster


def test_one_pool_and_a_split_run_about_as_fast_as_predicted(
    pools: Cluster, tmp_path: Path
) -> None:
    bench = Bench("short", WORK, tmp_path, num_rows=20_000, measured_batches=6)
    launcher = bench.one_job(pools)
    profile = bench.measure(pools, launcher)
    assert all(pool.cut_seconds_per_byte for pool in profile.pools)
    ratios = []  # a machine that is slower now than it was while measuring is so for both
    for text in ("fast:*:1", "slow:1:1 fast:*:1"):
        bench.train(pools, launcher, LayoutRun(text, 0), seconds=3.0)
        predicted = bench.predict(pools, profile, text).samples_per_second
        ratios.append(predicted / bench.rate(LayoutRun(text, 0)))
    launcher.end()
    assert 1 / FACTOR < ratios[1] / ratios[0] < FACTOR, ratios
