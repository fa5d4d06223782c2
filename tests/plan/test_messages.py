"""What crosses a cut costs by who waits for it: prefetched rows, activations, processor time."""

from dataclasses import replace

import numpy as np
import pytest

from heterps_hpc.cluster import Cluster, Link
from heterps_hpc.plan.cost_model import Choice, StageTable, estimate
from heterps_hpc.plan.problem import Problem, make_problem
from heterps_hpc.profile import LayerInfo, PoolTiming, Profile, TensorInfo, Timing

BATCH = 1000
ROWS = 1000.0  # bytes per sample that leave the embedding
ACTIVATIONS = 2000.0  # bytes per sample that leave the first dense layer
BYTES_PER_SECOND = 2e7  # a row's way takes 50 ms per batch, an activation's 100 ms
COMPUTE = {"slow": 0.040, "fast": 0.010}  # of every layer
MESSAGE = {"slow": 5e-9, "fast": 1e-9}


def problem(staleness: int = 1) -> Problem:
    names = ("embedding", "fc1", "fc2")
    pools = tuple(COMPUTE)
    profile = Profile(
        model="m",
        model_fingerprint="f",
        batch_size=BATCH,
        layers=tuple(LayerInfo(name=n, kind="fc", is_embedding=n == "embedding") for n in names),
        tensors=(
            TensorInfo(name="rows", writer="embedding", readers=("fc1",), bytes_per_sample=ROWS),
            TensorInfo(name="x", writer="fc1", readers=("fc2",), bytes_per_sample=ACTIVATIONS),
        ),
        timings=tuple(
            Timing(layer=layer, pool=pool, compute_seconds=COMPUTE[pool])
            for layer in names
            for pool in pools
        ),
        pools=tuple(
            PoolTiming(pool=pool, overlap=0.0, message_seconds_per_byte=MESSAGE[pool])
            for pool in pools
        ),
        links=tuple(
            Link(pools=ends, latency_seconds=1e-9, bytes_per_second=BYTES_PER_SECOND)
            for ends in (("slow", "slow"), ("fast", "fast"), ("slow", "fast"))
        ),
    )
    cluster = Cluster.parse(
        {"pools": [{"name": p, "price_per_hour": 1.0, "max_ranks": 4} for p in pools]}, "test"
    )
    return make_problem(
        profile, cluster, batch_size=BATCH, num_samples=1e6, micro_batches=2, staleness=staleness
    )


def seconds(question: Problem, *choices: Choice) -> float:
    return estimate(StageTable(question), choices).seconds_per_batch


TABLES_APART = (Choice(0, 0, 0, 1), Choice(1, 2, 1, 1))


def test_prefetched_rows_bound_a_batch_but_are_not_added() -> None:
    """50 ms of rows one way hide 42 ms of the table's stage and 22 ms of the dense one."""
    assert seconds(problem(), *TABLES_APART) == pytest.approx(ROWS * BATCH / BYTES_PER_SECOND)


def test_without_staleness_rows_are_waited_for() -> None:
    slow = 0.040 + 2 * ROWS * BATCH * MESSAGE["slow"] + 0.050
    fast = 0.020 + 2 * ROWS * BATCH * MESSAGE["fast"] + 0.050
    expected = (slow + fast) / 2 + slow / 2  # equation 4 with two micro-batches
    assert seconds(problem(0), *TABLES_APART) == pytest.approx(expected, rel=1e-6)


def test_messages_cost_processor_time_of_the_rank_that_handles_them() -> None:
    """On a fast network the tables' stage takes what it computes and what its bytes cost it."""
    question = problem()
    quick = replace(
        question.pools,
        uplink_seconds_per_byte=np.full(2, 1e-12),
        inner_seconds_per_byte=np.zeros(2),
    )
    table = StageTable(replace(question, pools=quick))
    own = table.compute_seconds(table.pair_index[0, 0], 0, 1)
    assert own == pytest.approx(0.040 + 2 * ROWS * BATCH * MESSAGE["slow"])
    # of two ranks within one stage each sends a quarter of the rows, and as much comes, twice
    whole = table.compute_seconds(table.pair_index[0, 2], 0, 2)
    assert whole == pytest.approx(0.060 + 4 * ROWS * BATCH / 4 * MESSAGE["slow"])


def test_activations_are_added_and_charged_to_their_sender() -> None:
    table = StageTable(problem())
    moving = table.move_seconds(table.pair_index[2, 2], 1, 1)
    assert moving == pytest.approx(ACTIVATIONS * BATCH / BYTES_PER_SECOND, rel=1e-6)
    halved = table.move_seconds(table.pair_index[2, 2], 1, 2)
    assert halved == pytest.approx(moving / 2, rel=1e-6)


def test_more_table_ranks_share_the_uplink() -> None:
    """Four ranks send a quarter each; the one receiver still takes all."""
    table = StageTable(problem())
    rows = table.pair_index[0, 0]
    assert table.prefetch_seconds(rows, 0, 4) == pytest.approx(0.050 / 4)
    four = (Choice(0, 0, 0, 4), Choice(1, 2, 1, 1))
    assert seconds(problem(), *four) == pytest.approx(0.050)
