"""From measured seconds to a profile: what is known must come out again."""

import pytest

from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.measure import starts
from heterps_hpc.config import Job
from heterps_hpc.launch.slurm.launcher import SlurmLauncher
from heterps_hpc.profile import LayerInfo, PoolTiming
from heterps_hpc.profiling.fit import amdahl, fit_profile, with_links
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
    assert timing.compute_seconds == pytest.approx(0.9)
    assert timing.compute_parallel == pytest.approx(1.0)
    assert profile.pool("cpu").full_node_ranks == 4
    assert profile.pool("cpu").alone == pytest.approx(0.6)


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


def test_what_ranks_wait_for_each_other_besides_the_sum_and_the_link() -> None:
    def run(ranks: int) -> Measured:
        link = 1e6 / 2 / 1e9  # half of what is sent are gradients, which are waited for
        waits = 0.048 * (ranks - 1) / ranks + link
        update = {
            "phase_seconds": {"wait gradients": waits - 0.002, "reduce": 0.040},
            "least_phase_seconds": {"reduce": 0.038},
            "bytes_sent": 1e6,
        }
        return measured(ranks, ranks, 1.0).model_copy(update=update)

    pool = pool_of(measured(1, 1, 1.0), run(2), run(4))
    assert pool.peer_wait_seconds == pytest.approx(0.048)


def test_computing_that_no_fit_explains_is_kept_as_it_was_measured() -> None:
    runs = [measured(1, 1, 1.0), measured(2, 1, 0.4), measured(4, 1, 0.15)]  # caches
    profile = fit_profile(CLUSTER, runs, [], one_machine=True)
    timing, pool = profile.timing("fc", "cpu"), profile.pool("cpu")
    for run in runs:
        fitted = timing.compute_seconds / run.num_ranks  # all parallel
        measured_seconds = fitted * pool.compute_factors[run.num_ranks]
        assert measured_seconds == pytest.approx(0.9 * run.step_seconds)


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
