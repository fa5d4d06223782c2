"""Measuring as short jobs on each partition, and between them."""

from pathlib import Path

import pytest

from heterps_hpc.commands.measure import measure
from heterps_hpc.rundir import RunDir
from tests.slurm.launching import FAST, ONE_PER_NODE
from tests.slurm.training import make_job

pytestmark = [pytest.mark.timeout(200), pytest.mark.usefixtures("here")]


def test_every_partition_and_the_way_between_are_measured(tmp_path: Path) -> None:
    job = make_job(tmp_path / "data")
    short = job.measure.model_copy(update={"batches": 3, "warmup": 1})
    job = job.model_copy(update={"measure": short})
    profile = measure(job, ONE_PER_NODE, RunDir(tmp_path / "run").create(), FAST)
    assert {timing.pool for timing in profile.timings} == {"cpu", "gpu"}
    assert all(timing.rank_counts == (1, 2) for timing in profile.timings)
    assert not profile.estimated_pools
    ends = {frozenset(link.pools) for link in profile.links}
    assert frozenset({"cpu", "gpu"}) in ends
    assert all(link.bytes_per_second > 1e6 and not link.estimated for link in profile.links)
