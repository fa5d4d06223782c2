"""A job without a cluster file runs on this machine."""

import os
from pathlib import Path

import yaml

from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.prepare import freeze
from heterps_hpc.config import Job

JOB = {
    "name": "j",
    "model": {"name": "ctrdnn"},
    "data": {"train": "d"},
    "train": {"batch_size": 8},
}


def test_without_a_cluster_it_is_this_machine(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    with freeze(tmp_path / "job.yaml", tmp_path / "run") as (job, cluster, directory):
        assert job.cluster is None
        assert cluster.pools[0].rank_limit == len(os.sched_getaffinity(0))
        assert Cluster.load(directory.cluster) == cluster
        assert Job.parse_saved(directory.job) == job


def test_a_cluster_file_next_to_the_job_is_taken(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    pool = {"name": "mine", "price_per_hour": 2, "max_ranks": 1}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump({"pools": [pool]}))
    with freeze(tmp_path / "job.yaml", tmp_path / "run") as (_, cluster, _):
        assert cluster.pools[0].name == "mine"
