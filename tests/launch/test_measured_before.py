"""A measurement is used again exactly while model, data, pool and code are the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_hpc.cluster import Cluster
from heterps_hpc.commands import measured_before
from heterps_hpc.commands.measure import measure
from heterps_hpc.config import Job, ModelSpec
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, Listener
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.profile import LayerInfo
from heterps_hpc.profiling.measurement import Measured
from heterps_hpc.rundir import RunDir
from tests.equivalence.click_log import write_click_log
from tests.launch.values import cpu_pool, make_cluster

ONE_RANK = cpu_pool(partition=None, max_nodes=None, max_ranks=1, cores_per_node=1)


class Counting(LocalLauncher):
    """Counts its starts, and leaves the times that ranks would have taken."""

    def __init__(self) -> None:
        super().__init__()
        self.num_starts = 0

    def start(self, request: LaunchRequest, listener: Listener | None = None) -> ExitCode:
        self.num_starts += 1
        Measured(
            pool=request.layout.components[0].pool,
            num_ranks=1,
            batch_size=64,
            micro_batches=1,
            model="m",
            model_fingerprint="f",
            layers=(LayerInfo(name="fc", kind="linear"),),
            tensors=(),
            tables=(),
            layer_seconds={"fc": 0.5},
            phase_seconds={},
            least_phase_seconds={},
            step_seconds=0.5,
        ).save(request.run.measured)
        return ExitCode.DONE


@pytest.fixture
def job(tmp_path: Path) -> Job:
    write_click_log(tmp_path / "click_log")
    return Job.parse(
        {
            "name": "first",
            "model": {"name": "ctrdnn"},
            "data": {"train": str(tmp_path / "click_log")},
            "train": {"batch_size": 64, "steps": 4},
            "measure": {"rank_counts": [1]},
        },
        "test",
    )


@pytest.fixture
def num_starts(tmp_path: Path) -> Callable[..., int]:
    """Measure in a run directory next to the others; how often ranks were started for it."""

    def start(name: str, job: Job, cluster: Cluster, **options: Any) -> int:
        launcher = Counting()
        profile = measure(job, cluster, RunDir(tmp_path / name).create(), launcher, **options)
        assert {timing.pool for timing in profile.timings} == {cluster.pools[0].name}
        return launcher.num_starts

    return start


def with_train(job: Job, **changes: Any) -> Job:
    return job.model_copy(update={"train": job.train.model_copy(update=changes)})


def test_the_same_is_not_measured_again(
    job: Job, num_starts: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(ONE_RANK)
    assert num_starts("first", job, cluster) == 1
    assert num_starts("second", job, cluster) == 0
    assert num_starts("second", job, cluster, again=True) == 1
    # what does not change the time of a batch
    renamed = job.model_copy(update={"name": "other"})
    priced = make_cluster(ONE_RANK.model_copy(update={"price_per_hour": 9.0, "name": "node"}))
    assert num_starts("third", with_train(renamed, steps=None, epochs=9), priced) == 0
    # what does
    assert num_starts("larger", with_train(job, batch_size=32), cluster) == 1
    wider = ModelSpec.model_validate({"name": "ctrdnn", "embedding_dim": 8})
    assert num_starts("wider", job.model_copy(update={"model": wider}), cluster) == 1
    memory = make_cluster(ONE_RANK.model_copy(update={"memory_per_node_gb": 3.0}))
    assert num_starts("memory", job, memory) == 1
    monkeypatch.setattr(measured_before, "code_hash", lambda _: "changed")
    assert num_starts("code", job, cluster) == 1


def test_the_hash_of_the_code_is_that_of_every_source(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    before = measured_before.code_hash(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing")
    assert measured_before.code_hash(tmp_path) == before
    (tmp_path / "b.py").touch()
    assert measured_before.code_hash(tmp_path) != before


def test_measurements_of_a_broken_run_are_passed_over(
    job: Job, num_starts: Callable[..., int], tmp_path: Path
) -> None:
    cluster = make_cluster(ONE_RANK)
    num_starts("first", job, cluster)
    (noted,) = (tmp_path / "first").glob("measure/*/measured_for.json")
    noted.write_text("{")
    assert num_starts("second", job, cluster) == 1
