"""Layouts: ranks numbered by component, every partition held once, contradictions refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout, Stage
from heterps_hpc.layout_checks import check_cluster, check_job
from heterps_hpc.model import Layer, Lookup, Model, TableSpec, embedding
from heterps_hpc.sharding import assign_shards, bind_plan

CLUSTER = Cluster.parse(
    {
        "pools": [
            {"name": "cpu", "price_per_hour": 1, "max_ranks": 4, "cores_per_node": 2},
            {"name": "gpu", "price_per_hour": 2, "max_ranks": 2, "cores_per_node": 2},
        ]
    },
    "cluster.yaml",
)


def dense(name: str, reads: tuple[str, ...], writes: tuple[str, ...]) -> Layer:
    return Layer(name, "fc", reads, writes, make=object)


def tower(num_slots: int = 3) -> Model:
    lookups = [Lookup(f"s{i}", f"t{i}", "embedded") for i in range(num_slots)]
    return Model(
        "tower",
        (
            embedding("embedding", lookups),
            dense("fc", ("embedded", "dense"), ("hidden",)),
            dense("top", ("hidden", "label"), ("score", "loss")),
        ),
        tuple(TableSpec(f"t{i}", 4) for i in range(num_slots)),
    )


def stages(*parts: tuple[str, tuple[str, ...], int]) -> tuple[Stage, ...]:
    return tuple(Stage(pool=p, layers=names, num_ranks=k) for p, names, k in parts)


def bind(plan: tuple[Stage, ...], model: Model | None = None) -> Layout:
    return bind_plan(plan, model=model or tower(), cluster=CLUSTER, job="job", num_partitions=8)


def test_a_pool_used_twice_is_one_component() -> None:
    layout = bind(stages(("cpu", ("embedding",), 2), ("gpu", ("fc",), 1), ("cpu", ("top",), 1)))
    assert [(c.pool, c.first_rank, c.num_ranks) for c in layout.components] == [
        ("cpu", 0, 3),
        ("gpu", 3, 1),
    ]
    assert [entry.stage for entry in layout.ranks] == [0, 0, 2, 1]
    assert [entry.role for entry in layout.ranks] == ["sparse", "sparse", "dense", "dense"]
    assert layout.components[0].num_nodes == 2


def test_round_trip_through_json(tmp_path: Path) -> None:
    layout = bind(stages(("cpu", ("embedding", "fc"), 2), ("gpu", ("top",), 2)))
    layout.save(tmp_path / "layout.json")
    assert Layout.load(tmp_path / "layout.json") == layout


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.01, 100), max_size=8),
    st.integers(1, 9),
    st.integers(1, 16),
)
def test_every_partition_is_assigned_exactly_once(
    loads: dict[str, float], num_ranks: int, num_partitions: int
) -> None:
    assigned = assign_shards(loads, num_ranks, num_partitions)
    held = sorted(
        (shard.table, partition)
        for shards in assigned
        for shard in shards
        for partition in range(shard.first_partition, shard.last_partition)
    )
    assert held == sorted((table, p) for table in loads for p in range(num_partitions))


def test_equal_tables_stay_whole_and_a_giant_is_cut() -> None:
    whole = assign_shards({f"t{i}": 1.0 for i in range(6)}, 3, 64)
    assert [len(shards) for shards in whole] == [2, 2, 2]
    cut = assign_shards({"giant": 10.0, "dwarf": 1.0}, 2, 64)
    assert sum(shard.table == "giant" for shards in cut for shard in shards) == 2


def test_a_plan_beyond_a_pool_is_refused() -> None:
    with pytest.raises(UserError, match="has 2 ranks, the plan needs 3"):
        bind(stages(("cpu", ("embedding",), 1), ("gpu", ("fc", "top"), 3)))


def test_a_layout_of_another_model_is_refused() -> None:
    layout = bind(stages(("cpu", ("embedding", "fc", "top"), 1)))
    with pytest.raises(UserError, match="plan again"):
        layout.check_model(tower(num_slots=4))


def shard(data: Any) -> Any:
    """The first shard of the first rank."""
    return data["ranks"][0]["shards"][0]


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda d: d["ranks"].reverse(), "in order"),
        (lambda d: d["components"][0].update(num_ranks=5), "components cover"),
        (lambda d: d["stages"][0].update(num_ranks=3), "stage 0 needs 3 ranks"),
        (lambda d: d["ranks"][2].update(component=0), "not among the ranks of its component"),
        (lambda d: d["stages"][0].update(pool="gpu"), "component of pool"),
        (lambda d: d.update(version=9), "version"),
        (lambda d: d["ranks"][0].update(component=99), "rank 0 is in component 99"),
        (lambda d: d["ranks"][0].update(stage=7), "rank 0 is in stage 7"),
        (lambda d: d["ranks"][1].update(replica=3), r"replicas of stage 0 are \[0, 3\]"),
        (lambda d: d["ranks"][1].update(replica=0), r"replicas of stage 0 are \[0, 0\]"),
        (lambda d: shard(d).update(last_partition=2), "held by no rank"),
        (lambda d: shard(d).update(first_partition=1), "partition 0 of table .* by no rank"),
        (lambda d: shard(d).update(first_partition=4, last_partition=2), "must rise"),
        (lambda d: shard(d).update(last_partition=9), "stay within 8"),
        (lambda d: d["ranks"][1]["shards"].append(dict(shard(d))), "held twice"),
        (lambda d: d["ranks"][2]["shards"].append(dict(shard(d))), "sparse=False and 1 shards"),
        (
            lambda d: (d["ranks"][2].update(sparse=True), d["ranks"][2]["shards"].append(shard(d))),
            r"held by ranks of stages \[0, 1\]",
        ),
        (lambda d: d["ranks"][0].update(sparse=False), "sparse=False and"),
        (lambda d: d["ranks"][1].update(dense=True), "some ranks of stage 0 are dense"),
        (lambda d: d["stages"][1]["layers"].append("embedding"), "in stage 0 and in stage 1"),
        (lambda d: d["components"][0].update(num_nodes=9), "9 nodes for 2 ranks"),
        (lambda d: d["components"][0].update(num_nodes=1, ranks_per_node=1), "2 ranks on 1 nodes"),
        (lambda d: d["components"][0].update(num_ranks=10**9), "limit|at most|less than"),
        (lambda d: d["components"][0].update(cores_per_rank=10**6), "less than or equal to 4096"),
        (lambda d: d.pop("ranks"), "missing"),
    ],
)
def test_a_damaged_layout_is_refused(tmp_path: Path, damage: object, word: str) -> None:
    layout = bind(stages(("cpu", ("embedding",), 2), ("gpu", ("fc", "top"), 1)))
    data = json.loads(layout.to_json())
    damage(data)  # type: ignore[operator]
    path = tmp_path / "layout.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=word):
        Layout.load(path)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (
            lambda d: [entry.update(shards=[], sparse=False) for entry in d["ranks"]],
            "no rank holds",
        ),
        (lambda d: shard(d).update(table="tt0"), "did you mean"),
        (lambda d: d["ranks"][2].update(dense=False), "dense=False"),
        (lambda d: d["stages"][1]["layers"].reverse(), "in order: embedding, fc, top"),
    ],
)
def test_a_layout_that_does_not_fit_its_model_is_refused(damage: Any, word: str) -> None:
    data = json.loads(bind(stages(("cpu", ("embedding",), 2), ("gpu", ("fc", "top"), 1))).to_json())
    damage(data)
    with pytest.raises(UserError, match=word):
        Layout.parse(data, "layout.json").check_model(tower())


def test_a_layout_of_other_partitions_than_the_job_is_refused() -> None:
    """Keys of the partitions beyond would be held by no rank, and never learn."""
    layout = bind(stages(("cpu", ("embedding",), 2), ("gpu", ("fc", "top"), 1)))
    train = {"batch_size": 64, "tables": {"num_partitions": layout.num_partitions}}
    described = {"name": "job", "model": {"name": "ctrdnn"}, "data": {"train": "x"}, "cluster": "c"}
    check_job(layout, Job.parse({**described, "train": train}, "job"))
    train["tables"] = {"num_partitions": 2 * layout.num_partitions}
    with pytest.raises(UserError, match="plan again"):
        check_job(layout, Job.parse({**described, "train": train}, "job"))


def test_a_layout_beyond_its_cluster_is_refused() -> None:
    layout = bind(stages(("cpu", ("embedding",), 2), ("gpu", ("fc", "top"), 1)))
    check_cluster(layout, CLUSTER)
    small = CLUSTER.pools[0].model_copy(update={"max_ranks": 1})
    used = layout.components[0].cores_per_rank * layout.components[0].ranks_per_node
    few_cores = CLUSTER.pools[0].model_copy(update={"cores_per_node": used - 1})
    for pools, word in (
        (CLUSTER.pools[:1], "no pool 'gpu'"),
        ((small, CLUSTER.pools[1]), "whose limit is 1"),
        ((CLUSTER.pools[0], CLUSTER.pools[1].model_copy(update={"device": "cuda"})), "device cpu"),
        ((few_cores, CLUSTER.pools[1]), f"{used} cores on each node"),
    ):
        with pytest.raises(UserError, match=word):
            check_cluster(layout, CLUSTER.model_copy(update={"pools": pools}))


@pytest.mark.parametrize(
    ("layers", "word"),
    [
        ((dense("a", ("nothing",), ("score", "loss")),), "no earlier layer writes"),
        ((dense("a", ("dense",), ("score", "loss", "spare")),), "never read"),
        ((dense("a", ("dense",), ("score",)),), "no layer writes 'loss'"),
        (
            (embedding("e", [Lookup("s", "none", "x")]), dense("a", ("x",), ("score", "loss"))),
            "no table",
        ),
        ((dense("a", ("dense",), ("loss",)), dense("a", ("dense",), ("score",))), "two layers"),
    ],
)
def test_models_that_are_wired_wrongly_are_refused(layers: tuple[Layer, ...], word: str) -> None:
    with pytest.raises(UserError, match=word):
        Model("wrong", layers, ())


def test_pieces_of_a_cut_table_stay_apart() -> None:
    assigned = assign_shards({"a": 6.0, "b": 3.0, "c": 3.0}, num_ranks=3, num_partitions=8)
    assert all(sum(shard.table == "a" for shard in shards) <= 1 for shards in assigned)


def test_tables_of_equal_load_are_assigned_as_neighbours() -> None:
    assigned = assign_shards({f"s{i}": 1.0 for i in range(6)}, num_ranks=2, num_partitions=8)
    assert [[shard.table for shard in shards] for shards in assigned] == [
        ["s0", "s1", "s2"],
        ["s3", "s4", "s5"],
    ]


def test_a_table_a_little_above_the_fair_share_stays_whole() -> None:
    """Both pieces would pass over all of its keys."""
    shards = assign_shards({"a": 1.2, "b": 1.0, "c": 1.0, "d": 0.8}, 4, 64)
    assert all(len(held) == 1 and held[0].is_whole(64) for held in shards)
    single = assign_shards({"a": 1.0}, 5, 64)
    assert [len(held) for held in single] == [1] * 5  # all of them, where it must be cut anyway
    assert (
        sum(
            not shard.is_whole(64)
            for held in assign_shards({"a": 3.0, "b": 1.0}, 4, 64)
            for shard in held
        )
        == 3
    )
