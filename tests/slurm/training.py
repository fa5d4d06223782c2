"""A small real training job for the cluster: data, layout of 2+2 ranks, and what it learned."""

from pathlib import Path
from typing import Any

from data_prep.synthetic import ensure_synthetic
from heterps_hpc.checkpoint import newest
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.layout import Layout, Stage
from heterps_hpc.models import build_model
from heterps_hpc.rundir import RunDir
from heterps_hpc.sharding import bind_plan
from tests.faults.runs import Learned, learned
from tests.slurm.client import SlurmClient
from tests.slurm.launching import CLUSTER, Launched, submit

NUM_STEPS = 240


def make_job(data: Path, **launch: Any) -> Job:
    """A job that takes some seconds; its data is written on first use."""
    described = {
        "name": "slurm-test",
        "model": {"name": "ctrdnn", "embedding_dim": 4, "hidden": [8]},
        "data": {
            "train": str(data / "train"),
            "synthetic": {
                "train_rows": 3000,
                "test_rows": 100,
                "num_slots": 4,
                "cardinality": 50,
                "num_dense": 2,
            },
        },
        "train": {"batch_size": 32, "epochs": None, "steps": NUM_STEPS, "metrics_every": 20},
        "checkpoint": {"every_steps": 40},
        "launch": {"oversubscribe": True, "time_limit_minutes": 5, **launch},
    }
    job = Job.parse(described, "test job")
    assert job.data.synthetic is not None
    ensure_synthetic(job.data.synthetic, job.data.train, None)
    return job


def prepare(
    directory: Path, job: Job, sparse_pool: str = "cpu", cluster: Cluster = CLUSTER
) -> tuple[RunDir, Layout]:
    """A run directory with the job and its layout frozen in it: tables on one pool, rest on gpu."""
    run = RunDir(directory).create()
    model = build_model(job.model, Dataset.open(job.data.train).manifest)
    first, *rest = (layer.name for layer in model.layers)
    stages = (
        Stage(pool=sparse_pool, layers=(first,), num_ranks=2),
        Stage(pool="gpu", layers=tuple(rest), num_ranks=2),
    )
    layout = bind_plan(
        stages,
        model=model,
        cluster=cluster,
        job=job.name,
        num_partitions=job.train.tables.num_partitions,
    )
    job.save(run.job)
    cluster.save(run.cluster)
    layout.save(run.layout)
    return run, layout


def train_on_slurm(
    slurm: SlurmClient,
    directory: Path,
    job: Job,
    sparse_pool: str = "cpu",
    cluster: Cluster = CLUSTER,
) -> Launched:
    """Submit the real trainer."""
    run, layout = prepare(directory, job, sparse_pool, cluster)
    return submit(slurm, LaunchRequest(run, layout, job, cluster))


def result(run: RunDir) -> Learned:
    """Everything in the last checkpoint of an ended run."""
    checkpoint = newest(run.checkpoints)
    assert checkpoint is not None
    assert checkpoint.manifest.step == NUM_STEPS
    return learned(checkpoint)
