"""Nodes are gone for good: the launcher plans for those that are left, and nothing is lost."""

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.launch import start
from heterps_hpc.commands.plan import plan
from heterps_hpc.commands.prepare import model_of, ready_data
from heterps_hpc.config import Goal, Job, PlanSpec
from heterps_hpc.dataset import Dataset
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.launch.slurm import launcher
from heterps_hpc.layout import Layout
from heterps_hpc.profile import LayerInfo, Profile, TensorInfo, Timing
from heterps_hpc.rundir import RunDir
from tests.faults.runs import Learned, different_bits, different_numbers
from tests.launch.values import ROOT
from tests.slurm.client import SlurmClient
from tests.slurm.launching import FAST, ONE_PER_NODE, Launched
from tests.slurm.training import NUM_STEPS, make_job, result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

# the tables are most of the work and belong on `cpu`, the rest belongs on `gpu`
SECONDS = {"cpu": (0.1, 0.1), "gpu": (0.3, 0.001)}


@pytest.fixture(autouse=True)
def _give_nodes_up_soon(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody revives them: no need to hope for three minutes."""
    monkeypatch.setattr(launcher, "_REQUEUE_SECONDS", 5.0)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """As fast as the cluster can, in numbers that show more than a changed order of sums.

    No sample comes twice and most keys are rare: a row that is lost is not made again later.
    """
    made = make_job(tmp_path_factory.mktemp("few"), max_restarts=1)
    assert made.data.synthetic is not None
    rare = {"train_rows": NUM_STEPS * made.train.batch_size, "cardinality": 5000}
    data = {
        "train": tmp_path_factory.mktemp("many") / "train",
        "synthetic": made.data.synthetic.model_copy(update=rare),
    }
    changes = {
        "data": made.data.model_copy(update=data),
        "train": made.train.model_copy(update={"precision": "float64"}),
        "goal": Goal(min_fraction_of_best=0.99),
        "plan": PlanSpec(scheduler="exact"),
    }
    job = made.model_copy(update=changes)
    ready_data(job)
    return job


@pytest.fixture(scope="module")
def expected(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Learned:
    """What the first plan learns under one mpirun, undisturbed."""
    run, layout = planned(tmp_path_factory.mktemp("local"), job, ONE_PER_NODE)
    here = LocalLauncher(environment={"PYTHONPATH": str(ROOT)})
    code = here.start(LaunchRequest(run, layout, job, ONE_PER_NODE))
    assert code == ExitCode.DONE
    return result(run)


def made_up_profile(job: Job) -> Profile:
    """Times that make the plan of every set of nodes foreseeable."""
    model = model_of(job, Dataset.open(job.data.train))
    first = model.layers[0].name
    layers = [layer.name for layer in model.layers]
    return Profile(
        model=model.name,
        model_fingerprint=model.fingerprint(),
        batch_size=job.train.batch_size,
        layers=tuple(
            LayerInfo(name=layer.name, kind=layer.kind, is_embedding=layer.name == first)
            for layer in model.layers
        ),
        tensors=tuple(
            TensorInfo(name=one, writer=one, readers=(two,), bytes_per_sample=16)
            for one, two in pairwise(layers)
        ),
        timings=tuple(
            Timing(layer=name, pool=pool, compute_seconds=tables if name == first else others)
            for pool, (tables, others) in SECONDS.items()
            for name in layers
        ),
    )


def planned(path: Path, job: Job, cluster: Cluster) -> tuple[RunDir, Layout]:
    """A run directory with everything that `heterps launch` finds in it."""
    run = RunDir(path).create()
    job.save(run.job)
    cluster.save(run.cluster)
    made_up_profile(job).save(run.profile)
    return run, plan(job, cluster, run)


@contextmanager
def launched(
    slurm: SlurmClient, run: RunDir, job: Job, layout: Layout
) -> Iterator[tuple[Launched, Future[ExitCode]]]:
    """`heterps launch --on slurm`, waiting in a thread; its jobs are cancelled with the test's."""

    def submitted() -> list[int]:
        return [event.job_id for event in events.read(run).of(events.Submitted)]

    request = LaunchRequest(run, layout, job, ONE_PER_NODE)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(start, FAST, request)
        try:
            slurm.wait_for("the job is submitted", lambda: bool(submitted()) or waiting.done())
            yield Launched(request, submitted()[0], slurm), waiting
        finally:
            while not waiting.done():  # the test has failed: end whatever the thread waits for
                slurm.run("scancel", *map(str, submitted()), check=False)
                wait([waiting], timeout=2)
            slurm.jobs += submitted()


def ranks_of(layout: Layout) -> dict[str, int]:
    return {part.pool: part.num_ranks for part in layout.components}


def resumed_steps(run: RunDir) -> list[int]:
    """The steps from which the first rank continued, by its log."""
    return [int(step) for step in re.findall(r"resumed at step (\d+)", run.rank_log(0).read_text())]


def saved_steps(run: RunDir) -> list[int]:
    """The steps whose checkpoints are complete."""
    return [event.step for event in events.read(run).of(events.CheckpointSaved)]


def only_keys(found: Learned) -> Learned:
    """Which rows there are."""
    return {name: keys for name, keys in found.items() if name.endswith(" keys")}


@pytest.mark.parametrize(
    ("dead", "left"),
    [
        pytest.param(("c2",), {"cpu": 1, "gpu": 1}, id="one of two nodes"),
        pytest.param(
            ("c1", "c2"), {"gpu": 2}, id="a whole pool, the leader's", marks=pytest.mark.full
        ),
    ],
)
def test_the_rest_of_the_nodes_continues(
    dead: tuple[str, ...],
    left: dict[str, int],
    slurm: SlurmClient,
    tmp_path: Path,
    job: Job,
    expected: Learned,
) -> None:
    run, layout = planned(tmp_path, job, ONE_PER_NODE)
    assert ranks_of(layout) == {"cpu": 2, "gpu": 1}
    with launched(slurm, run, job, layout) as (first, waiting):
        first.wait_for_watcher()
        slurm.wait_for("a checkpoint of step 40", lambda: 40 in saved_steps(run), 150)
        for node in dead:
            slurm.cluster.kill_node(node)
        assert waiting.result(timeout=300) == ExitCode.DONE, first.log()
    again = events.read(run).last(events.PlannedAgain)
    assert again is not None
    assert again.capacity == {"cpu": 2 - len(dead), "gpu": 2}
    assert ranks_of(Layout.load(run.layout)) == left
    assert first.events().count("start") == 2
    (step,) = resumed_steps(run)
    assert step >= 40
    found = result(run)
    assert different_bits(only_keys(found), only_keys(expected)) == []
    assert different_numbers(found, expected, 1e-10) == []
