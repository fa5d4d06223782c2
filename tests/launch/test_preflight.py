"""What a preflight refuses, on made-up information, and what it measures in a real world."""

import dataclasses
import re
from collections.abc import Callable

import pytest

from heterps_hpc.cluster import Link
from heterps_hpc.runtime.health.ping import link_time
from heterps_hpc.runtime.health.preflight_checks import (
    RankInfo,
    expand_nodes,
    problems,
    world_problem,
)
from tests.launch.values import gpu_pool, make_cluster, make_layout

LAYOUT = make_layout(make_cluster(), ("cpu", 2), ("gpu", 2))
NODES = ("c1", "c1", "g1", "g1")


def good() -> list[RankInfo]:
    return [
        RankInfo(
            rank=rank,
            component=rank // 2,
            node=NODES[rank],
            allocated_nodes=(NODES[rank],),
            versions={"heterps_hpc": "1", "torch": "2"},
            dataset="d",
            needed_bytes=10,
            free_bytes=100,
        )
        for rank in range(4)
    ]


def changed(rank: int, **changes: object) -> list[RankInfo]:
    infos = good()
    infos[rank] = dataclasses.replace(infos[rank], **changes)  # type: ignore[arg-type]
    return infos


def test_good_infos_pass() -> None:
    assert problems(good(), LAYOUT) == []


@pytest.mark.parametrize(
    ("infos", "words"),
    [
        (lambda: changed(1, component=1), "rank 1 was started in component 1, the layout .* in 0"),
        (lambda: changed(2, node="c9"), "rank 2 of pool 'gpu' runs on c9, its component has g1"),
        (lambda: changed(3, dataset="e"), r"training data differs: d on rank 0 .*e on rank 3"),
        (
            lambda: changed(3, versions={"heterps_hpc": "1", "torch": "3"}),
            r"torch differs: 2 on rank 0 \(c1\), 3 on rank 3 \(g1\)",
        ),
        (lambda: changed(0, needed_bytes=95), "node c1 needs about .* ranks 0, 1 and has"),
        (lambda: changed(0, spill_bytes=95), "spill_dir"),
    ],
)
def test_each_problem_is_named(infos: Callable[[], list[RankInfo]], words: str) -> None:
    (problem,) = problems(infos(), LAYOUT)
    assert re.search(words, problem), problem


def test_horovod_must_be_the_same_where_it_is_used() -> None:
    infos = good()
    for rank, found in ((2, "0.28"), (3, "none")):  # the sparse ranks do without
        versions = {**infos[rank].versions, "Horovod": found}
        infos[rank] = dataclasses.replace(infos[rank], versions=versions)
    (problem,) = problems(infos, LAYOUT)
    assert "Horovod differs: 0.28 on rank 2 (g1), none on rank 3 (g1)" in problem
    assert problems([*infos[:3], good()[3]], LAYOUT) == []


def test_too_many_ranks_on_a_node() -> None:
    layout = make_layout(make_cluster(gpu_pool()), ("gpu", 4))
    infos = [
        RankInfo(rank=r, component=0, node="g1", allocated_nodes=("g1", "g2"), free_bytes=1)
        for r in range(4)
    ]
    (problem,) = problems(infos, layout)
    assert "node g1 has 4 ranks of pool 'gpu', the layout puts at most 2" in problem


def test_one_machine_may_play_all_nodes() -> None:
    infos = [dataclasses.replace(info, allocated_nodes=(), node="here") for info in good()]
    assert problems(infos, LAYOUT) == []


def test_ranks_that_see_the_same_devices_take_turns() -> None:
    layout = make_layout(make_cluster(gpu_pool(device="cuda")), ("gpu", 2))
    shared = [RankInfo(rank=r, component=0, node="g1", devices=("a", "b")) for r in range(2)]
    bound = [RankInfo(rank=r, component=0, node="g1", devices=("ab"[r],)) for r in range(2)]
    blind = [RankInfo(rank=r, component=0, node="g1") for r in range(2)]
    crowded = [RankInfo(rank=r, component=0, node="g1", devices=("a",)) for r in range(2)]
    assert problems(shared, layout) == []
    assert problems(bound, layout) == []
    assert "would take cuda device 0 of g1 but sees 0" in problems(blind, layout)[0]
    assert "would take cuda device 1 of g1 but sees 1" in problems(crowded, layout)[0]


@pytest.mark.parametrize(
    ("latency", "bulk", "rate"),
    [(1e-6, 1.001e-3, 4.194e9), (4e-3, 4e-3, 2.1e9), (5e-3, 4e-3, 2.1e9), (0.0, 0.0, 4.66e14)],
)
def test_the_link_of_a_busy_node_is_a_link(latency: float, bulk: float, rate: float) -> None:
    found = link_time(latency, bulk)
    assert found.bytes_per_second == pytest.approx(rate, rel=0.01)
    assert Link(pools=("cpu", "gpu"), **found.model_dump()).latency_seconds > 0


def test_worlds_of_one_rank_are_explained_in_one_line() -> None:
    problem = world_problem(1, 4, {"SLURM_NTASKS": "4"}, "MPICH Version: 5")
    assert problem is not None
    assert "\n" not in problem
    assert "SLURM_NTASKS=4" in problem
    assert "MPICH Version: 5" in problem
    assert "srun_mpi" in problem


def test_wrong_number_of_ranks_is_another_matter() -> None:
    problem = world_problem(3, 4, {"SLURM_NTASKS": "3"}, "MPICH")
    assert problem is not None
    assert "the layout has 4 ranks, MPI started 3" in problem
    assert world_problem(4, 4, {}, "MPICH") is None


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", ()),
        ("c1", ("c1",)),
        ("c[1-2]", ("c1", "c2")),
        ("c[01-03,7],login", ("c01", "c02", "c03", "c7", "login")),
        ("gpu[1,3]-ib,m1", ("gpu1-ib", "gpu3-ib", "m1")),
        ("r[1-2]n[3-4]", ("r1n3", "r1n4", "r2n3", "r2n4")),
        ("r[1-2]n[09-10]-ib,x", ("r1n09-ib", "r1n10-ib", "r2n09-ib", "r2n10-ib", "x")),
        ("a[1],b[2-3]c", ("a1", "b2c", "b3c")),
    ],
)
def test_node_expressions(expression: str, names: tuple[str, ...]) -> None:
    assert expand_nodes(expression) == names
