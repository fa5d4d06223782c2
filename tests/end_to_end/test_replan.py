"""A run that was planned from a wrong profile finds out, and continues on a cheaper layout."""

from dataclasses import replace
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.checkpoint import newest
from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.commands import replan
from heterps_hpc.commands.launch import start
from heterps_hpc.commands.plan import plan
from heterps_hpc.commands.prepare import model_of, ready_data
from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.heartbeats import Beat, NodeBeats
from heterps_hpc.launch.launcher import LaunchRequest, Replanner
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.layout import Layout
from heterps_hpc.profile import LayerInfo, Profile, Timing
from heterps_hpc.report.inputs import read_run
from heterps_hpc.report.spending import spending
from heterps_hpc.rundir import RunDir
from tests.faults.runs import Learned, different_bits, learned
from tests.launch.values import ROOT

CLUSTER = Cluster(
    pools=tuple(
        Pool(name=name, price_per_hour=price, max_ranks=1, cores_per_node=2)
        for name, price in (("cheap", 1.0), ("expensive", 2.0))
    )
)
SECONDS = {"cheap": 1e-4, "expensive": 1e-5}  # claimed, of a layer; really both are as slow


def make_job(
    data: Path, *, steps: int = 1500, floor: float = 1.0, after_minutes: float | None = 0.01
) -> Job:
    return Job.parse(
        {
            "name": "replanned",
            "model": {"name": "ctrdnn", "embedding_dim": 8, "hidden": [32]},
            "data": {
                "train": str(data / "train"),
                "synthetic": {"train_rows": 20_000, "num_slots": 6, "cardinality": 500},
            },
            "train": {"batch_size": 1024, "steps": steps, "evaluate_at_end": False},
            "goal": {"min_samples_per_second": floor},
            "plan": {"scheduler": "exact", "replan_after_minutes": after_minutes},
            "watch": {"heartbeat_seconds": 0.2},
            "launch": {"oversubscribe": True},
        },
        "test job",
    )


def planned(path: Path, job: Job) -> LaunchRequest:
    """A run directory that was planned from the wrong profile."""
    model = model_of(job, ready_data(job))
    run = RunDir(path).create()
    job.save(run.job)
    CLUSTER.save(run.cluster)
    Profile(
        model=model.name,
        model_fingerprint=model.fingerprint(),
        batch_size=job.train.batch_size,
        layers=tuple(
            LayerInfo(name=layer.name, kind=layer.kind, is_embedding=index == 0)
            for index, layer in enumerate(model.layers)
        ),
        timings=tuple(
            Timing(layer=layer.name, pool=pool, compute_seconds=seconds)
            for pool, seconds in SECONDS.items()
            for layer in model.layers
        ),
    ).save(run.profile)
    layout = plan(job, CLUSTER, run)
    assert layout.ranks_by_pool == {"expensive": 1}
    return LaunchRequest(run, layout, job, CLUSTER)


def seen_training(request: LaunchRequest, *, batch_seconds: float, start_seconds: float) -> None:
    """What the launcher sees of a run whose batches take so long."""
    run, steps = request.run, 100
    events.record(run, events.Started(time=1000.0))
    events.record(run, events.TrainingBegan(time=1000.0 + start_seconds))
    seconds = {"pull": 0.5 * steps * batch_seconds, "forward": 0.5 * steps * batch_seconds}
    beat = {
        "rank": 0,
        "stage": 0,
        "role": "sparse+dense",
        "host": "n",
        "pid": 1,
        "step": steps,
        "phase": "pull",
        "at": 2000.0,
        "since": 2000.0,
        "steps": steps,
        "seconds": seconds,
        "training_seconds": steps * batch_seconds,
    }
    beats = (Beat.parse(beat, "test"),)
    NodeBeats(node="n", written_at=1.0, every_seconds=5.0, beats=beats).save(
        run.heartbeats / "n.json"
    )


@pytest.mark.parametrize(
    ("steps", "floor", "batch_seconds", "start_seconds", "changes"),
    [
        pytest.param(100_000, 1, 0.01, 10.0, True, id="the other pool is cheaper"),
        pytest.param(100_000, 1, 2e-4, 10.0, False, id="it is as good as it was thought to be"),
        pytest.param(1_000, 1, 0.01, 10.0, False, id="so little is left that a restart costs more"),
        pytest.param(100_000, 2e6, 7e-4, 1e4, True, id="it is below the floor"),
    ],
)
def test_a_layout_is_changed_only_if_that_is_worth_it(
    steps: int,
    floor: float,
    batch_seconds: float,
    start_seconds: float,
    changes: bool,
    tmp_path: Path,
) -> None:
    request = planned(tmp_path / "run", make_job(tmp_path, steps=steps, floor=floor))
    seen_training(request, batch_seconds=batch_seconds, start_seconds=start_seconds)
    found = replan.better_layout(request)
    assert (found is not None) == changes
    if found is not None:
        assert found.layout.ranks_by_pool == {"cheap": 1}


def test_a_layout_that_someone_wrote_is_left_alone(tmp_path: Path) -> None:
    request = planned(tmp_path / "run", make_job(tmp_path, steps=100_000))
    seen_training(request, batch_seconds=0.01, start_seconds=1.0)
    request.layout.model_copy(update={"plan": None}).save(request.run.layout)
    assert replan.better_layout(request) is None
    plain = make_job(tmp_path, after_minutes=None)
    assert type(replan.replanner_of(replace(request, job=plain))) is Replanner


def trained(path: Path, job: Job) -> tuple[RunDir, Learned]:
    """Plan from the wrong profile and train to the end."""
    request = planned(path, job)
    here = LocalLauncher(environment={"PYTHONPATH": str(ROOT)})
    assert start(here, request) == ExitCode.DONE
    saved = newest(request.run.checkpoints)
    assert saved is not None
    return request.run, learned(saved)


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_own_times_lead_to_a_cheaper_layout_and_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replan, "_LOOK_SECONDS", 0.1)
    # a restart takes about as long as this small run: it would not be worth its money
    monkeypatch.setattr(replan, "restart_seconds", lambda request: 0.0)
    as_planned = make_job(tmp_path, after_minutes=None)
    undisturbed, expected = trained(tmp_path / "as planned", as_planned)
    assert Layout.load(undisturbed.layout).ranks_by_pool == {"expensive": 1}

    run, found = trained(tmp_path / "replanned", make_job(tmp_path))
    history = events.read(run)
    again = history.last(events.PlannedAgain)
    assert again is not None, run.history.read_text()
    assert again.ranks == Layout.load(run.layout).ranks_by_pool == {"cheap": 1}
    assert again.saving is not None
    assert again.saving >= replan.MIN_SAVING
    assert len(history.of(events.Started)) == 2
    assert different_bits(found, expected) == []  # one rank each: not even the order of sums

    # by the corrected profile both pools are as fast as the run was
    profile = Profile.load(run.profile)
    assert "corrected" in profile.notes[-1]
    spent = spending(read_run(run))
    assert spent is not None
    assert {pool.pool for pool in spent.pools} == {"cheap", "expensive"}
