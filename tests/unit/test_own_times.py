"""A run's own times correct a wrong profile, so that its plan is predicted as it ran."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.cluster import Cluster, Link, Pool
from heterps_hpc.heartbeats import Beat, NodeBeats
from heterps_hpc.layout import Estimate, Stage
from heterps_hpc.plan.given import rate_stages
from heterps_hpc.profile import LayerInfo, PoolTiming, Profile, TensorInfo, Timing
from heterps_hpc.profiling.own_times import batch_seconds, corrected, solve
from heterps_hpc.run_times import RankTimes, read_run_times
from heterps_hpc.rundir import RunDir
from tests.launch.values import make_cluster, make_job, make_layout

LAYERS = ("embedding", "fc1", "fc2")
POOLS = ("slow", "fast")
CLUSTER = Cluster(
    pools=tuple(
        Pool(name=name, price_per_hour=1.0, max_ranks=4, cores_per_node=4) for name in POOLS
    )
)
JOB = make_job()


def profile_of(oct_: Mapping[str, tuple[float, ...]], fixed: float, rate: float) -> Profile:
    return Profile(
        model="m",
        model_fingerprint="f",
        batch_size=JOB.train.batch_size,
        layers=tuple(
            LayerInfo(name=name, kind="x", is_embedding=name == "embedding") for name in LAYERS
        ),
        tensors=(
            TensorInfo(name="rows", writer="embedding", readers=("fc1",), bytes_per_sample=64),
            TensorInfo(name="h", writer="fc1", readers=("fc2",), bytes_per_sample=1e6),
        ),
        timings=tuple(
            Timing(layer=name, pool=pool, compute_seconds=seconds, compute_parallel=0.9)
            for pool in POOLS
            for name, seconds in zip(LAYERS, oct_[pool], strict=True)
        ),
        pools=tuple(PoolTiming(pool=pool, batch_seconds=fixed, overlap=0.0) for pool in POOLS),
        links=tuple(
            Link(pools=ends, latency_seconds=1e-6, bytes_per_second=rate)
            for ends in (("slow", "fast"), ("slow", "slow"), ("fast", "fast"))
        ),
    )


WRONG = profile_of({"slow": (0.1, 0.2, 0.3), "fast": (0.02, 0.04, 0.06)}, 0.01, 1e9)
TRUE = profile_of({"slow": (0.4, 0.2, 0.3), "fast": (0.02, 0.08, 0.12)}, 0.02, 5e8)
STAGES = (
    Stage(pool="slow", layers=("embedding", "fc1"), num_ranks=2),
    Stage(pool="fast", layers=("fc2",), num_ranks=1),
)


def estimate(profile: Profile, stages: tuple[Stage, ...] = STAGES) -> Estimate:
    return rate_stages(JOB, CLUSTER, profile, stages, 1e6)[0]


def times_of(truth: Profile, steps: int = 50) -> list[RankTimes]:
    """What the ranks of a run would have noted if `truth` were true."""
    batch = estimate(truth).seconds_per_batch

    def compute(stage: Stage, embedding: bool) -> float:
        amdahl = 0.1 + 0.9 / stage.num_ranks
        chosen = [name for name in stage.layers if (name == "embedding") == embedding]
        return sum(truth.timing(name, stage.pool).compute_seconds for name in chosen) * amdahl

    found: list[RankTimes] = []
    for index, stage in enumerate(STAGES):
        tables, dense = compute(stage, True), compute(stage, False)
        read = truth.pool(stage.pool).batch_seconds
        phases = {
            "pull": 0.4 * tables,
            "push": 0.6 * tables,
            "forward": 0.3 * dense,
            "backward": 0.6 * dense,
            "update": 0.1 * dense,
            "read": read,
            "wait inputs": batch - tables - dense - read,
            "evaluate": 7.0,  # outside training
        }
        for _ in range(stage.num_ranks):
            seconds = {name: steps * value for name, value in phases.items()}
            found.append(
                RankTimes(
                    rank=len(found),
                    stage=index,
                    steps=steps,
                    training_seconds=steps * batch,
                    seconds=seconds,
                )
            )
    return found


def test_the_runs_own_plan_is_then_predicted_as_it_ran() -> None:
    times = times_of(TRUE)
    assert estimate(WRONG).seconds_per_batch < 0.7 * batch_seconds(times)
    found = corrected(WRONG, STAGES, times, estimate, "first")
    assert estimate(found).seconds_per_batch == pytest.approx(batch_seconds(times), rel=1e-3)


def test_each_term_gets_what_its_phases_show() -> None:
    found = corrected(WRONG, STAGES, times_of(TRUE), estimate, "first")
    for layer, pool in (("embedding", "slow"), ("fc1", "slow"), ("fc2", "fast"), ("fc1", "fast")):
        expected = TRUE.timing(layer, pool).compute_seconds
        assert found.timing(layer, pool).compute_seconds == pytest.approx(expected, rel=0.01)
    assert found.pool("slow").batch_seconds == pytest.approx(0.02, rel=0.01)
    assert found.links[0].bytes_per_second == pytest.approx(5e8, rel=0.02)
    # embeddings did not run on `fast`: they are as wrong as what did
    assert found.timing("embedding", "fast").compute_seconds == pytest.approx(0.04, rel=0.01)
    assert found.timing("fc2", "fast").rank_counts == (1,)
    assert "first" in found.notes[-1]


def test_what_ranks_with_tables_read_corrects_the_loading_of_keys() -> None:
    """What a dense stage reads is no keys: it counts as fixed."""

    def with_keys(profile: Profile) -> Profile:
        embedding = profile.layers[0].model_copy(update={"keys_per_sample": 10.0})
        pools = tuple(each.model_copy(update={"read_key_seconds": 5e-6}) for each in profile.pools)
        layers = (embedding, *profile.layers[1:])
        return profile.model_copy(update={"layers": layers, "pools": pools})

    loading = estimate(with_keys(TRUE)).stages[0].compute_seconds
    loading -= estimate(TRUE).stages[0].compute_seconds
    found = corrected(with_keys(TRUE), STAGES, times_of(TRUE), estimate, "first")
    waited = TRUE.pool("slow").batch_seconds  # the fixture's phase `read`
    factor = waited / loading
    assert found.pool("slow").read_key_seconds == pytest.approx(5e-6 * factor, rel=0.01)
    assert found.pool("slow").batch_seconds == pytest.approx(0.0, abs=1e-3)
    assert found.pool("fast").read_key_seconds == 5e-6
    assert found.pool("fast").batch_seconds == pytest.approx(0.02, rel=0.01)


def test_a_pool_that_was_not_used_keeps_its_times() -> None:
    alone = (Stage(pool="slow", layers=LAYERS, num_ranks=1),)

    def predict(profile: Profile) -> Estimate:
        return estimate(profile, alone)

    seconds = {"pull": 0.3 * 50, "push": 0.3 * 50, "forward": 1.0 * 50}
    times = [RankTimes(rank=0, stage=0, steps=50, training_seconds=2.0 * 50, seconds=seconds)]
    found = corrected(WRONG, alone, times, predict, "r")
    assert predict(found).seconds_per_batch == pytest.approx(2.0, rel=1e-3)
    assert found.timing("fc2", "fast") == WRONG.timing("fc2", "fast")


def test_a_factor_is_found_within_bounds() -> None:
    assert solve(lambda x: 2 + x, 5.0) == pytest.approx(3.0)
    assert solve(lambda x: 2 + x, 99.0) == pytest.approx(4.0)
    assert solve(lambda x: 2.0, 99.0) == 1.0


def test_times_of_a_run_that_trains_come_from_its_heartbeats(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    layout = make_layout(make_cluster(), ("cpu", 1), ("gpu", 1))
    events.record(run, events.Started(time=100.0))

    def beat(rank: int, at: float) -> Beat:
        known = {"role": "dense", "host": "n", "pid": 1, "step": 9, "phase": "pull", "since": at}
        times = {"steps": 30, "training_seconds": 6.0, "seconds": {"pull": 3.0}}
        return Beat.parse({"rank": rank, "stage": rank, "at": at, **known, **times}, "test")

    def write(*beats: Beat) -> None:
        node = NodeBeats(node="n", written_at=1.0, every_seconds=5.0, beats=beats)
        node.save(run.heartbeats / "n.json")

    write(beat(0, 101.0), beat(1, 99.0))
    assert read_run_times(run, layout) == ()  # the second is of an earlier start
    write(beat(0, 101.0), beat(1, 101.0))
    found = read_run_times(run, layout)
    assert [each.per_step("pull", "push") for each in found] == [0.1, 0.1]
    assert batch_seconds(found) == pytest.approx(0.2)


def test_what_a_device_computes_takes_the_devices_time() -> None:
    """The host only starts it."""
    on_host = {"forward": 0.2, "pull": 3.0}
    rank = RankTimes(rank=0, stage=0, steps=2, seconds=on_host, device_seconds={"forward": 8.0})
    assert rank.per_step("forward", "pull") == 5.5
