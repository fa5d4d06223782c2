"""From measured seconds to a profile: what is known must come out again."""

import pytest

from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.measure import starts
from heterps_hpc.config import Job
from heterps_hpc.launch.slurm.launcher import SlurmLauncher
from heterps_hpc.profile import LayerInfo, PoolTiming, TableLoad
from heterps_hpc.profiling.fit import amdahl, fit_profile, mean_loads, with_links
from heterps_hpc.profiling.measurement import LinkTime, Measured, MeasuredLinks

CLUSTER = Cluster.parse(
    {"pools": [{"name": "cpu", "price_per_hour": 1, "cores_per_node": 4, "max_nodes": 2}]}, "test"
)
LAYERS = (LayerInfo(name="fc", kind="linear", weight_bytes_total=1e6),)


def measured(num_ranks: int, node_ranks: int, seconds: float) -> Measured:
    """One start: nine tenths of a step in the only layer, the rest nobody's."""
    return Measured(
        pool="cpu",
        num_ranks=num_ranks,
        node_ranks=node_ranks,
        batch_size=128,
        micro_batches=1,
        model="m",
        model_fingerprint="f",
        layers=LAYERS,
        tensors=(),
        tables=(),
        layer_seconds={"fc": 0.9 * seconds},
        phase_seconds={},
        least_phase_seconds={},
        step_seconds=seconds,
        link=LinkTime(latency_seconds=1e-6, bytes_per_second=1e9) if num_ranks > 1 else None,
    )


def pool_of(*runs: Measured) -> PoolTiming:
    return fit_profile(CLUSTER, runs, [], one_machine=True).pool("cpu")


def test_amdahl_finds_what_made_the_times() -> None:
    counts = [1, 2, 4]
    total, alpha, residual = amdahl(counts, [3.0 * (0.2 + 0.8 / k) for k in counts])
    assert total == pytest.approx(3.0)
    assert alpha == pytest.approx(0.8)
    assert residual == pytest.approx(0.0, abs=1e-12)


def test_amdahl_of_one_point_assumes_that_all_is_shared() -> None:
    assert amdahl([2], [1.5]) == (1.5, 1.0, None)


def test_times_are_those_of_a_full_node_and_one_rank_alone_is_faster() -> None:
    runs = [measured(1, 1, 0.6), measured(1, 4, 1.0), measured(2, 4, 0.5)]
    profile = fit_profile(CLUSTER, runs, [], one_machine=True)
    timing = profile.timing("fc", "cpu")
    assert timing.compute_seconds == pytest.approx(1.0)
    assert timing.compute_parallel == pytest.approx(1.0)
    assert profile.pool("cpu").full_node_ranks == 4
    assert profile.pool("cpu").alone == pytest.approx(0.6)


def test_what_is_nobodys_is_the_layers_as_far_as_it_shrinks_with_ranks() -> None:
    """0.08 s of it are halved with each doubling of ranks, and 0.02 s are not."""
    runs = [
        measured(k, k, 1.0 / k).model_copy(update={"step_seconds": 0.9 / k + 0.08 / k + 0.02})
        for k in (1, 2, 4)
    ]
    profile = fit_profile(CLUSTER, runs, [], one_machine=True)
    assert profile.timing("fc", "cpu").compute_seconds == pytest.approx(0.98)
    assert profile.timing("fc", "cpu").compute_parallel == pytest.approx(1.0)
    assert profile.pool("cpu").batch_seconds == pytest.approx(0.02)


def test_of_one_number_of_ranks_nobody_can_tell_what_shrinks() -> None:
    assert pool_of(measured(1, 1, 1.0)).batch_seconds == pytest.approx(0.1)


def test_a_node_of_one_rank_has_no_relief() -> None:
    pool = pool_of(measured(1, 1, 1.0), measured(2, 1, 0.5))
    assert (pool.full_node_ranks, pool.alone) == (1, 1.0)


def test_noise_never_makes_company_helpful() -> None:
    assert pool_of(measured(1, 1, 1.1), measured(1, 4, 1.0)).alone == 1.0


def test_no_rank_is_alone_on_a_machine_that_pools_share() -> None:
    """While a stage of one pool has one rank, that of the other pool keeps the other cores busy."""
    other = CLUSTER.pools[0].model_copy(update={"name": "other"})
    shared = CLUSTER.model_copy(update={"pools": (*CLUSTER.pools, other)})
    runs = [measured(1, 1, 0.6), measured(1, 4, 1.0)]
    assert fit_profile(shared, runs, [], one_machine=True).pool("cpu").alone == 1.0
    assert fit_profile(shared, runs, [], one_machine=False).pool("cpu").alone == pytest.approx(0.6)


def test_one_rank_alone_is_measured_next_to_full_nodes() -> None:
    job = Job.parse(
        {
            "name": "j",
            "model": {"name": "ctrdnn"},
            "data": {"train": "d"},
            "train": {"batch_size": 8},
        },
        "test",
    )
    assert starts(job, CLUSTER.pools[0], SlurmLauncher()) == [(1, 1), (1, 4), (2, 4)]
    single = CLUSTER.pools[0].model_copy(update={"cores_per_node": 1})
    assert starts(job, single, SlurmLauncher()) == [(1, 1), (2, 2)]


def test_messages_cost_what_sending_and_joining_took() -> None:
    """A megabyte sent, and so received, in 4 + 2 ms: 3 ns for each of both."""
    busy = {"phase_seconds": {"send": 0.004, "assemble": 0.002}, "bytes_sent": 1e6}
    run = measured(2, 2, 1.0).model_copy(update=busy)
    assert pool_of(measured(1, 1, 1.0), run).message_seconds_per_byte == pytest.approx(3e-9)


def test_messages_cost_by_number_and_by_byte() -> None:
    """Two numbers of ranks tell a message's own cost from that of its bytes."""

    def run(ranks: int, sent: float, messages: float) -> Measured:
        seconds = 2 * sent * 3e-9 + 2 * messages * 1e-4
        update = {"phase_seconds": {"send": seconds}, "bytes_sent": sent, "messages_sent": messages}
        return measured(ranks, ranks, 1.0).model_copy(update=update)

    pool = pool_of(measured(1, 1, 1.0), run(2, 1e6, 4), run(4, 0.75e6, 12))
    assert pool.message_seconds_per_byte == pytest.approx(3e-9)
    assert pool.message_seconds == pytest.approx(1e-4)


def test_the_ring_has_a_latency_and_a_rate() -> None:
    """A sum that takes three times as long on four ranks as on two is all latency."""

    def run(ranks: int, latency: float, per_byte: float) -> Measured:
        seconds = 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * 1e6 * per_byte
        phases = {"reduce": seconds}
        update = {"least_phase_seconds": phases, "phase_seconds": phases}
        return measured(ranks, ranks, 1.0).model_copy(update=update)

    for latency, per_byte in ((0.019, 0.0), (1e-4, 2e-9), (0.0, 1e-9)):
        runs = [run(ranks, latency, per_byte) for ranks in (2, 4)]
        pool = pool_of(measured(1, 1, 1.0), *runs)
        assert pool.reduce_latency_seconds == pytest.approx(latency, abs=1e-9)
        assert pool.reduce_seconds_per_byte == pytest.approx(per_byte, abs=1e-13)


def test_a_sum_and_an_exchange_on_one_link_are_not_charged_twice() -> None:
    """A megabyte of rows' gradients keeps the link busy for 1 ms of the 50 that ranks wait."""
    waits = {"reduce": 0.040, "wait gradients": 0.010}
    run = measured(2, 2, 1.0).model_copy(update={"least_phase_seconds": waits, "bytes_sent": 2e6})
    assert run.exchange_seconds == pytest.approx(1e-3)
    assert run.reduce_seconds == pytest.approx(0.049)


def test_a_pool_of_one_rank_learns_from_the_run_across_pools() -> None:
    profile = fit_profile(CLUSTER, [measured(1, 1, 1.0)], [], one_machine=False)
    assert profile.pool("cpu").cut_seconds_per_byte is None
    across = MeasuredLinks(
        links=(),
        cut_seconds_per_byte={"cpu": 2e-9, "other": 1.0},
        tables_batch_seconds={"other": 0.3},
    )
    pool = with_links(profile, [across]).pool("cpu")
    assert (pool.cut_seconds_per_byte, pool.tables_batch_seconds) == (2e-9, None)
    there = [MeasuredLinks(links=(), tables_batch_seconds={"cpu": x}) for x in (0.1, 0.3)]
    assert with_links(profile, there).pool("cpu").tables_batch_seconds == pytest.approx(0.2)


def test_what_a_key_takes_to_load_comes_from_a_window_and_not_from_steps() -> None:
    """A measured step may or may not meet the load of a window, so its reading does not count."""
    run = measured(1, 1, 1.0)
    slots = run.layers[0].model_copy(update={"keys_per_sample": 10.0})
    read = {
        "layers": (slots, *run.layers[1:]),
        "window_rows": 1000,
        "window_seconds": 0.5,
        "phase_seconds": {"read": 0.04, "wait gradients": 0.01},
    }
    pool = pool_of(run.model_copy(update=read))
    assert pool.read_key_seconds == pytest.approx(0.5 / 1000 / 10)
    without = pool_of(run.model_copy(update=read | {"phase_seconds": {}}))
    assert pool.batch_seconds == pytest.approx(without.batch_seconds - 0.04)


def test_a_rank_that_waits_computes_faster_under_a_quota_than_a_busy_one() -> None:
    """Alone it needs 5 s for one of the processor's; among others, with waits, only 2.5 s."""
    alone = measured(1, 1, 1.0).model_copy(update={"stretch": 5.0})
    phases = {"wait gradients": 0.5, "send": 0.1}
    shared = measured(2, 2, 1.0).model_copy(
        update={"stretch": 2.5, "layer_seconds": {"fc": 0.225}, "phase_seconds": phases}
    )
    busy = shared.as_if_busy(5.0)
    assert busy.layer_seconds == {"fc": pytest.approx(0.45)}
    assert busy.phase_seconds["send"] == pytest.approx(0.2)
    assert busy.phase_seconds["wait gradients"] == pytest.approx(0.5 - 0.225 - 0.1)
    assert fit_profile(CLUSTER, [alone, shared], [], one_machine=True).timing(
        "fc", "cpu"
    ).compute_parallel == pytest.approx(1.0)


def test_what_a_rank_works_in_a_step_is_no_longer_than_the_step() -> None:
    """In its step it got no more of the processor than its quota: only its waits can be work."""
    phases = {"wait gradients": 0.09, "send": 0.1}
    run = measured(2, 2, 1.0).model_copy(
        update={"stretch": 2.5, "layer_seconds": {"fc": 0.8}, "phase_seconds": phases}
    )
    busy = run.as_if_busy(5.0)
    assert busy.layer_seconds == {"fc": pytest.approx(0.88)}
    assert busy.phase_seconds["wait gradients"] == 0.0
    assert busy.unattributed_seconds == pytest.approx(run.unattributed_seconds)


def test_a_rank_that_is_never_throttled_keeps_its_times() -> None:
    run = measured(2, 2, 1.0)
    assert run.as_if_busy(1.0) is run
    assert run.model_copy(update={"stretch": 2.0}).as_if_busy(1.0).layer_seconds == {"fc": 0.9}


def test_tables_weigh_what_they_took_in_all_runs_and_alike_ones_the_same() -> None:
    def run(ranks: int, **work: float) -> Measured:
        tables = tuple(TableLoad(name=name, work=seconds) for name, seconds in work.items())
        return measured(ranks, ranks, 1.0).model_copy(update={"tables": tables})

    loads = mean_loads(
        [run(1, big=6.0, a=1.01, b=0.99, idle=0.0), run(2, big=3.0, a=0.5, b=0.5, idle=0.0)]
    )
    assert [load.work for load in loads] == [3.0, 0.5, 0.5, 0.05]
    assert {load.work for load in mean_loads([run(1, a=0.0, b=0.0)])} == {1.0}


def test_a_profile_with_terms_of_earlier_versions_can_be_read() -> None:
    former = {"peer_wait_seconds": 0.1, "compute_factors": {"1": 1.0, "2": 0.9}}
    assert PoolTiming.parse({"pool": "cpu", **former}, "test") == PoolTiming(pool="cpu")
