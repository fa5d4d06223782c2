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


CLUSTER = Cluster.parse(
    {"pools": [{"name": p, "price_per_hour": 1.0, "max_ranks": 4} for p in COMPUTE]}, "test"
)


def profile() -> Profile:
    names = ("embedding", "fc1", "fc2")
    pools = tuple(COMPUTE)
    return Profile(
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


def problem(staleness: int = 1) -> Problem:
    return make_problem(
        profile(), CLUSTER, batch_size=BATCH, num_samples=1e6, micro_batches=2, staleness=staleness
    )


def seconds(question: Problem, *choices: Choice) -> float:
    return estimate(StageTable(question), choices).seconds_per_batch


TABLES_APART = (Choice(0, 0, 0, 1), Choice(1, 2, 1, 1))


def test_rows_bound_a_batch_and_are_part_of_the_loop() -> None:
    """50 ms of rows one way are more than 50 ms of tables or 22 ms of dense layers, but rows of a
    batch wait for the push of the last but one: half of tables, chain and half of the way twice."""
    question = problem()
    tables, chain, rows = 0.040 + 2 * 5e-3, 0.020 + 2 * 1e-3, ROWS * BATCH / BYTES_PER_SECOND
    loop = (tables + chain + 2 * rows / 2) / 2
    assert seconds(question, *TABLES_APART) == pytest.approx(loop, rel=1e-6)
    many = replace(question, micro_batches=1000)
    assert seconds(many, *TABLES_APART) == pytest.approx(rows, rel=1e-4)
    patient = replace(question, staleness=3)
    assert seconds(patient, *TABLES_APART) == pytest.approx(rows, rel=1e-6)


def test_without_staleness_tables_and_dense_layers_take_turns() -> None:
    slow = 0.040 + 2 * ROWS * BATCH * MESSAGE["slow"]
    fast = 0.020 + 2 * ROWS * BATCH * MESSAGE["fast"]
    expected = slow + fast + 2 * 0.050 / 2  # one of two micro-batches each way
    assert seconds(problem(0), *TABLES_APART) == pytest.approx(expected, rel=1e-6)


def test_nobody_waits_for_a_message_of_prefetched_rows() -> None:
    """But of activations, and of rows that are not prefetched."""
    cut_in_two = (Choice(0, 1, 0, 1), Choice(2, 2, 1, 1))

    def more(staleness: int, *choices: Choice) -> float:
        question = problem(staleness)
        late = replace(question.pools, uplink_latency=np.full(2, 5e-3))
        return seconds(replace(question, pools=late), *choices) - seconds(question, *choices)

    assert more(1, *TABLES_APART) == 0
    assert more(0, *TABLES_APART) > 0.01
    assert more(1, *cut_in_two) > 0.01


def test_peers_cost_by_message() -> None:
    """Two ranks that exchange send each other two messages a batch, and as many gradients."""
    question = problem()
    pools = replace(question.pools, message_seconds=np.full(2, 1e-3))
    table, before = StageTable(replace(question, pools=pools)), StageTable(question)
    whole = table.pair_index[0, 2]
    more = table.compute_seconds(whole, 0, 2) - before.compute_seconds(whole, 0, 2)
    assert more == pytest.approx(4 * 2 * 1e-3)


def test_what_a_stage_does_once_per_batch_is_not_pipelined() -> None:
    """While tables are pulled and pushed, the dense stages after them have drained."""
    question = problem()
    quick = replace(question.pools, uplink_seconds_per_byte=np.full(2, 1e-15))
    question = replace(question, pools=quick)
    table = StageTable(question)
    stages = [Choice(0, 1, 0, 1), Choice(2, 2, 1, 1)]
    first, second = (table.parts(*cell) for cell in zip(*table.cells(stages), strict=True))
    assert first.once > 0 == second.once  # the first holds tables
    m = question.micro_batches
    assert m > 1
    expected = first.once + (first.spread + second.spread) / m
    expected += (1 - 1 / m) * max(first.spread, second.spread)
    assert table.evaluate(stages).seconds == pytest.approx(expected)


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


def test_a_transfer_takes_as_long_as_its_slower_end() -> None:
    """Four ranks would be through in 25 ms each way; the one that they talk to needs 100 ms."""
    question, one_way = problem(), ACTIVATIONS * BATCH / BYTES_PER_SECOND
    for stages in (
        [Choice(0, 1, 0, 4), Choice(2, 2, 1, 1)],
        [Choice(0, 1, 1, 1), Choice(2, 2, 0, 4)],
        [Choice(0, 1, 0, 1), Choice(2, 2, 1, 1)],
    ):
        table = StageTable(question)
        own = [table.parts(*cell) for cell in zip(*table.cells(stages), strict=True)]
        m = question.micro_batches
        chain = sum(float(part.once + part.spread / m) for part in own)
        # a micro-batch there and one back, and what the slowest part of the pipeline takes besides
        chain += 2 * one_way / m + (1 - 1 / m) * one_way
        assert one_way > max(float(part.spread) for part in own)
        assert seconds(question, *stages) == pytest.approx(chain)


def test_a_link_carries_one_micro_batch_while_another_is_computed() -> None:
    question = problem()
    quick = np.full(2, 0.3 / BYTES_PER_SECOND)
    question = replace(question, pools=replace(question.pools, uplink_seconds_per_byte=quick))
    stages = [Choice(0, 1, 0, 1), Choice(2, 2, 1, 1)]
    table, m = StageTable(question), question.micro_batches
    first, second = (table.parts(*cell) for cell in zip(*table.cells(stages), strict=True))
    one_way = 0.3 * ACTIVATIONS * BATCH / BYTES_PER_SECOND
    assert first.spread > one_way
    expected = first.once + (first.spread + second.spread + 2 * one_way) / m
    assert seconds(question, *stages) == pytest.approx(expected + (1 - 1 / m) * first.spread)


def test_more_table_ranks_share_the_uplink() -> None:
    """Four ranks send a quarter each; the one receiver still takes all."""
    table = StageTable(problem())
    rows = table.pair_index[0, 0]
    assert table.rows_seconds(rows, 0, 4) == pytest.approx(0.050 / 4)
    four = (Choice(0, 0, 0, 4), Choice(1, 2, 1, 1))
    assert seconds(problem(), *four) == pytest.approx(0.050)


def test_new_rows_count_by_what_the_whole_job_creates() -> None:
    """A million rows at 1 µs: a second of the job, however many batches share it."""
    base = profile().model_copy(
        update={
            "layers": (
                profile().layers[0].model_copy(
                    update={"table_rows_total": 1e6, "keys_per_sample": 1e6}
                ),
                *profile().layers[1:],
            ),
            "pools": tuple(p.model_copy(update={"new_row_seconds": 1e-6}) for p in profile().pools),
        }
    )  # fmt: skip
    for samples in (1e6, 1e8):
        before, after = (
            make_problem(x, CLUSTER, batch_size=BATCH, num_samples=samples).layers.OCT
            for x in (profile(), base)
        )
        more = (after - before) * samples / BATCH
        assert more[0] == pytest.approx(1.0)
        assert more[1:] == pytest.approx(0.0)


def test_a_link_that_the_other_end_limits_says_nothing_of_this_one() -> None:
    """Several slow ranks may use the fast one's card at once; without knowing that card, a rank's
    way out is its fastest link."""
    rates = {("slow", "slow"): 1e8, ("slow", "fast"): 0.98e8, ("fast", "fast"): 1e9}

    def uplinks(**changed: float | None) -> list[float]:
        known = {ends: changed.get("_".join(ends), rate) for ends, rate in rates.items()}
        links = tuple(
            Link(pools=ends, latency_seconds=1e-5, bytes_per_second=rate)
            for ends, rate in known.items()
            if rate is not None
        )
        question = make_problem(
            profile().model_copy(update={"links": links}), CLUSTER, batch_size=1, num_samples=1
        )
        return list(1 / question.pools.uplink_seconds_per_byte)

    assert uplinks() == pytest.approx([0.98e8, 1e9])
    assert uplinks(fast_fast=None) == pytest.approx([0.98e8, 0.98e8])
    assert uplinks(slow_fast=0.5e8) == pytest.approx([0.5e8, 0.5e8])  # the way between them


def test_a_measured_link_counts_before_what_its_card_is_sold_as() -> None:
    """200 Mbit/s, of which protocols leave 192, on the one node of a pool."""
    described = (Link(pools=("fast", "fast"), latency_seconds=1e-5, bytes_per_second=25e6),)
    cluster = CLUSTER.model_copy(update={"links": described})

    def uplink(rate: float) -> float:
        links = tuple(
            Link(pools=ends, latency_seconds=1e-5, bytes_per_second=rate, estimated=False)
            for ends in (("slow", "slow"), ("slow", "fast"))
        )
        measured = profile().model_copy(update={"links": links})
        question = make_problem(measured, cluster, batch_size=1, num_samples=1)
        return float(1 / question.pools.uplink_seconds_per_byte[1])

    assert uplink(24e6) == pytest.approx(24e6)
    assert uplink(12e6) == pytest.approx(25e6)  # the other card's
    assert uplink(26e6) == pytest.approx(25e6)
