"""From a profile to a layout: the whole way, its words, and bad input."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from heterps_hpc import format as fmt
from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout
from heterps_hpc.model import Lookup, Model, TableSpec, dense, embedding
from heterps_hpc.plan.goals import Change, number, rounded
from heterps_hpc.plan.planner import layout_from, make_plan, question_of
from heterps_hpc.plan.problem import Problem, problem_of_job
from heterps_hpc.plan.remedies import find_remedies
from heterps_hpc.plan.terminal import money_line, show, summary_lines
from heterps_hpc.planning_result import PlanningResult
from heterps_hpc.profile import LayerInfo, Profile, TableLoad, TensorInfo, Timing
from heterps_hpc.profiling.data_sheets import (
    layer_timing,
    load_sheet,
    profile_from_sheets,
    sheet_names,
)
from heterps_hpc.rundir import RunDir
from tests.plan.instances import random_cluster

LAYERS = ("embedding", "fc1", "loss")


def small_model(name: str = "small") -> Model:
    """An embedding, one dense layer, a loss."""
    return Model(
        name,
        (
            embedding("embedding", [Lookup("s", "t", "rows")]),
            dense("fc1", object, "rows", "score"),
            dense("loss", object, "score label", "loss", kind="loss"),
        ),
        (TableSpec("t", 4),),
    )


def small_cluster(**changes: Any) -> Cluster:
    """A cheap slow pool and an expensive fast one."""
    cpu = {"name": "cpu", "price_per_hour": 0.04, "max_ranks": 8, "cores_per_node": 8}
    gpu = {"name": "gpu", "price_per_hour": 2.42, "max_ranks": 4, "cores_per_node": 8}
    gpu |= {"kind": "accelerator"}
    pools = [Pool.parse({**cpu, **changes}, "cpu"), Pool.parse(gpu, "gpu")]
    return Cluster(pools=tuple(pools))


def small_profile(model: Model, **changes: Any) -> Profile:
    """Tables are fast on the CPU, dense layers on the GPU."""
    seconds = {"cpu": (0.01, 0.2, 0.001), "gpu": (0.02, 0.004, 0.0001)}
    fields: dict[str, Any] = {
        "model": model.name,
        "model_fingerprint": model.fingerprint(),
        "batch_size": 1000,
        "layers": (
            LayerInfo(name="embedding", kind="embedding", is_embedding=True, table_bytes_total=1e6),
            LayerInfo(name="fc1", kind="fc", weight_bytes_total=1e4),
            LayerInfo(name="loss", kind="loss"),
        ),
        "tensors": (
            TensorInfo(name="rows", writer="embedding", readers=("fc1",), bytes_per_sample=16),
            TensorInfo(name="score", writer="fc1", readers=("loss",), bytes_per_sample=4),
        ),
        "tables": (TableLoad(name="t", work=1.0, bytes_total=1e6),),
        "timings": tuple(
            Timing(layer=layer, pool=pool, compute_seconds=value, compute_parallel=0.95)
            for pool, values in seconds.items()
            for layer, value in zip(LAYERS, values, strict=True)
        ),
    }
    return Profile(**{**fields, **changes})


def small_job(**goal: float) -> Job:
    """A job of the small model."""
    return Job.parse(
        {
            "name": "small",
            "model": {"name": "ctrdnn"},
            "data": {"train": "nowhere"},
            "train": {"batch_size": 1000},
            "goal": goal or {"min_fraction_of_best": 0.5},
            "plan": {"scheduler": "greedy", "seconds": 2},
        },
        "test",
    )


def test_plan_to_layout_and_back(tmp_path: Path) -> None:
    model, cluster = small_model(), small_cluster()
    profile, job = small_profile(model), small_job()
    result = make_plan(job, cluster, profile, model, 1e6)
    layout = layout_from(result, job, cluster, profile, model)
    layout.save(tmp_path / "layout.json")
    result.save(tmp_path / "planning.json")
    assert Layout.load(tmp_path / "layout.json") == layout
    assert PlanningResult.load(tmp_path / "planning.json") == result
    assert result.plan.gap is not None
    assert result.plan.gap >= 0
    assert result.best is not None
    assert result.plan.estimate.samples_per_second >= result.best * 0.5 * (1 - 1e-6)
    assert json.loads((tmp_path / "layout.json").read_text())["version"] == 1
    assert layout.num_ranks == sum(stage.num_ranks for stage in result.plan.stages)


def test_the_printed_table_is_complete() -> None:
    model, cluster = small_model(), small_cluster()
    profile, job = small_profile(model), small_job()
    result = make_plan(job, cluster, profile, model, 1e6)
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    show(result, layout_from(result, job, cluster, profile, model), console)
    text = console.export_text()
    for word in ("slowest", "samples/s", "/hour", "/million samples", "optimum", "gap", "frontier"):
        assert word in text
    assert money_line(result.plan).startswith("money ")
    for times in result.plan.estimate.stages:  # no figure is cut, however narrow the terminal
        for seconds in (times.compute_seconds, times.move_seconds, times.seconds):
            assert fmt.seconds(seconds) in text
    assert "%" in text
    assert "0%" not in text  # one way to print a percentage: 0.0 %


def test_more_ranks_than_were_measured_are_marked() -> None:
    model = small_model()
    job, cluster = small_job(min_samples_per_second=20_000.0), small_cluster()
    profile = small_profile(model)
    planned = make_plan(job, cluster, profile, model, 1e6)
    ranks = max(stage.num_ranks for stage in planned.plan.stages)
    assert planned.extrapolated == ()  # it does not say with how many ranks it was measured

    def measured(*counts: int) -> list[str]:
        timings = tuple(t.model_copy(update={"rank_counts": counts}) for t in profile.timings)
        known = profile.model_copy(update={"timings": timings})
        return summary_lines(make_plan(job, cluster, known, model, 1e6))

    assert ranks > 1
    assert any(
        line.startswith("extrapolated: stage") and line.endswith("measured with up to 1")
        for line in measured(1)
    )
    assert not any("extrapolated" in line for line in measured(1, ranks))


def test_frontier_rises_in_both_throughput_and_money() -> None:
    model, cluster = small_model(), small_cluster()
    points = make_plan(small_job(), cluster, small_profile(model), model, 1e6).frontier
    rates = [point.estimate.samples_per_second for point in points]
    moneys = [point.estimate.money for point in points]
    assert len(points) >= 3
    assert rates == sorted(rates)
    assert moneys == sorted(moneys)


def test_floor_above_every_possibility_names_the_smallest_changes() -> None:
    model = small_model()
    with pytest.raises(UserError) as error:
        make_plan(
            small_job(min_samples_per_second=2e6), small_cluster(), small_profile(model), model, 1e6
        )
    assert "min_samples_per_second: 2,000,000 →" in str(error.value)


def test_a_named_limit_really_is_enough_and_one_less_is_not() -> None:
    model, job = small_model(), small_job(min_samples_per_second=1e6)
    job = job.model_copy(update={"plan": job.plan.model_copy(update={"scheduler": "exact"})})
    cluster = small_cluster(max_ranks=64)  # so that the GPUs bind
    problem = problem_of_job(small_profile(model), cluster, job, 1e6)
    needed = int(_remedies(job, problem)["max_ranks of pool 'gpu'"].needed)
    assert needed > 4

    def with_gpus(count: int) -> Cluster:
        gpu = cluster.pool("gpu").model_copy(update={"max_ranks": count, "cores_per_node": 8})
        return Cluster(pools=(cluster.pool("cpu"), gpu))

    make_plan(job, with_gpus(needed), small_profile(model), model, 1e6)
    with pytest.raises(UserError, match="no plan reaches"):
        make_plan(job, with_gpus(needed - 1), small_profile(model), model, 1e6)


def test_tables_that_do_not_fit_name_the_memory_needed() -> None:
    model = small_model()
    big = small_profile(model)
    layers = (big.layers[0].model_copy(update={"table_bytes_total": 1e11}), *big.layers[1:])
    with pytest.raises(UserError, match=r"memory_per_node_gb of pool 'cpu': 4 → "):
        make_plan(
            small_job(), small_cluster(), big.model_copy(update={"layers": layers}), model, 1e6
        )


def _remedies(job: Job, problem: Problem) -> dict[str, Change]:
    remedies = find_remedies(question_of(job, problem))
    return {c.what: c for remedy in remedies for c in remedy.changes}


def test_remedies_name_the_key_that_binds() -> None:
    model, job = small_model(), small_job(min_samples_per_second=1e6)
    job = job.model_copy(update={"plan": job.plan.model_copy(update={"scheduler": "exact"})})
    gpu = small_cluster().pool("gpu").model_copy(update={"max_ranks": None, "max_nodes": 1})
    gpu = gpu.model_copy(update={"cores_per_node": 4})
    cluster = Cluster(pools=(small_cluster(max_ranks=64).pools[0], gpu))
    problem = problem_of_job(small_profile(model), cluster, job, 1e6)
    remedies = _remedies(job, problem)
    assert "max_ranks of pool 'gpu'" not in remedies
    nodes = int(remedies["max_nodes of pool 'gpu'"].needed)
    more = gpu.model_copy(update={"max_nodes": nodes})
    make_plan(job, Cluster(pools=(cluster.pools[0], more)), small_profile(model), model, 1e6)


def test_printed_numbers_are_on_the_side_that_helps() -> None:
    assert rounded(6.6991, math.floor) == 6.699
    assert rounded(0.60041, math.ceil) == 0.6005
    assert rounded(592_417.9, math.floor) == 592_417
    assert number(rounded(6.69999, math.floor)) == "6.699"
    model, job = small_model(), small_job(min_samples_per_second=2e6)
    problem = problem_of_job(small_profile(model), small_cluster(), job, 1e6)
    printed = str(_remedies(job, problem)["min_samples_per_second"]).split("→ ")[1].replace(",", "")
    make_plan(
        small_job(min_samples_per_second=float(printed)),
        small_cluster(),
        small_profile(model),
        model,
        1e6,
    )


def test_memory_is_offered_where_a_floor_is_missed() -> None:
    """Four CPU ranks are too slow, and the dense layers do not fit into the GPUs."""
    model, job = small_model(), small_job(min_samples_per_second=30_000.0)
    profile, cluster = small_profile(model), small_cluster(max_ranks=4)
    gpu = cluster.pool("gpu").model_copy(
        update={
            "device": "cuda", "gpus_per_node": 1, "gpu_memory_gb": 1e-6, "max_ranks": 4,
        }
    )  # fmt: skip
    cluster = Cluster(pools=(cluster.pools[0], gpu))
    problem = problem_of_job(profile, cluster, job, 1e6)
    remedies = _remedies(job, problem)
    assert remedies["min_samples_per_second"].needed < 30_000
    needed = remedies["gpu_memory_gb of pool 'gpu'"].needed
    enough = gpu.model_copy(update={"gpu_memory_gb": needed})
    make_plan(job, Cluster(pools=(cluster.pools[0], enough)), profile, model, 1e6)


def test_a_profile_that_lacks_a_layer_is_refused() -> None:
    model = small_model()
    profile = small_profile(model)
    update = {
        "layers": (profile.layers[0], profile.layers[2]),
        "timings": tuple(t for t in profile.timings if t.layer != "fc1"),
        "tensors": (),
    }
    with pytest.raises(UserError, match=r"lacks layer 'fc1'.*measure again"):
        make_plan(small_job(), small_cluster(), profile.model_copy(update=update), model, 1e6)


def test_unusual_values_are_remarked_on() -> None:
    model = small_model()
    job = small_job(min_samples_per_second=1e-9)
    job = job.model_copy(update={"plan": job.plan.model_copy(update={"seconds": 1e9})})
    result = make_plan(job, small_cluster(), small_profile(model), model, 1e6)
    text = "\n".join(summary_lines(result))
    assert "unusual: the floor of 1e-09 samples/s" in text
    assert "think for 11,574 days" in text
    assert not make_plan(small_job(), small_cluster(), small_profile(model), model, 1e6).remarks


def test_rules_without_a_plan_and_needed_pools_are_listed() -> None:
    model, job = small_model(), small_job(min_samples_per_second=60_000.0)
    result = make_plan(job, small_cluster(), small_profile(model), model, 1e6)
    screen = io.StringIO()
    layout = layout_from(result, job, small_cluster(), small_profile(model), model)
    show(result, layout, Console(file=screen, width=100))
    assert result.without_plan
    assert result.needed_pools == ("gpu",)
    for name in result.without_plan:
        assert re.search(rf"– +{name} +no plan that meets the goal", screen.getvalue())
    assert re.search(r"best without gpu +there is no plan", screen.getvalue())
    undecided = result.model_copy(update={"needed_pools": (), "undecided_pools": ("gpu",)})
    show(undecided, layout, Console(file=screen, width=100))
    assert re.search(r"best without gpu +none was found in time", screen.getvalue())


def test_baselines_go_by_the_kind_of_a_pool_and_say_which_kind_is_missing() -> None:
    model, easy = small_model(), small_job(min_samples_per_second=10_000.0)
    result = make_plan(easy, small_cluster(), small_profile(model), model, 1e6)
    pools = {plan.scheduler: set(plan.placement.values()) for plan in result.alternatives}
    assert pools["cpu-only"] == {"cpu"}
    assert pools["gpu-only"] == {"gpu"}
    assert pools["heuristic"] == {"cpu", "gpu"}
    one = Cluster(pools=small_cluster().pools[:1])
    alone = make_plan(small_job(), one, small_profile(model), model, 1e6)
    assert set(alone.without_plan) == {"gpu-only", "heuristic"}
    assert set(alone.why_no_plan.values()) == {"no accelerator pool"}
    job = small_job()
    job = job.model_copy(update={"plan": job.plan.model_copy(update={"scheduler": "gpu-only"})})
    with pytest.raises(UserError, match="no accelerator pool"):
        make_plan(job, one, small_profile(model), model, 1e6)


def test_profile_of_another_model_is_refused() -> None:
    profile = small_profile(small_model("other"))
    with pytest.raises(UserError, match=r"profile is of model 'other'.*measure again"):
        make_plan(small_job(), small_cluster(), profile, small_model(), 1e6)


def test_missing_pair_is_named() -> None:
    model = small_model()
    profile = small_profile(model)
    short = profile.model_copy(update={"timings": profile.timings[:-1]})
    with pytest.raises(UserError, match="no times of layer 'loss' on pool 'gpu'"):
        make_plan(small_job(), small_cluster(), short, model, 1e6)


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_prices_are_refused(price: float) -> None:
    with pytest.raises(UserError, match="price_per_hour"):
        small_cluster(price_per_hour=price)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_bad_times_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="compute_seconds"):
        Timing(layer="a", pool="b", compute_seconds=seconds)


def test_a_layer_that_takes_no_time_is_refused() -> None:
    model = small_model()
    profile = small_profile(model)
    zero = tuple(
        t.model_copy(update={"compute_seconds": 0.0}) if t.layer == "fc1" else t
        for t in profile.timings
    )
    with pytest.raises(UserError, match="layer 'fc1' takes 0 s"):
        make_plan(
            small_job(), small_cluster(), profile.model_copy(update={"timings": zero}), model, 1e6
        )


@pytest.mark.parametrize("scheduler", ["rl", "greedy", "genetic", "exact", "brute-force"])
def test_one_pool_gives_the_one_placement(scheduler: str) -> None:
    model = small_model()
    job = small_job()
    job = job.model_copy(update={"plan": job.plan.model_copy(update={"scheduler": scheduler})})
    one = Cluster(pools=small_cluster().pools[:1])
    plan = make_plan(job, one, small_profile(model), model, 1e6).plan
    assert [stage.layers for stage in plan.stages] == [LAYERS]
    assert plan.gap == 0.0


def test_data_sheets_are_complete_and_marked_estimated() -> None:
    assert {"v100", "a100", "h100", "cpu_core"} <= set(sheet_names())
    assert all(load_sheet(name).sources for name in sheet_names())
    with pytest.raises(UserError, match="did you mean 'v100'"):
        load_sheet("v10")
    model = small_model()
    gpu = small_cluster().pool("gpu").model_copy(update={"data_sheet": "v100"})
    measured = small_profile(model)
    only_cpu = measured.model_copy(
        update={"timings": tuple(t for t in measured.timings if t.pool == "cpu")}
    )
    profile = only_cpu.merged(profile_from_sheets(only_cpu, [gpu]))
    assert profile.estimated_pools == ["gpu"]
    cluster = Cluster(pools=(small_cluster().pool("cpu"), gpu))
    plan = make_plan(small_job(), cluster, profile, model, 1e6).plan
    assert plan.estimate.from_data_sheet == ("gpu" in plan.placement.values())


def test_a_plan_can_rest_on_data_sheets_alone(tmp_path: Path) -> None:
    from heterps_hpc.commands.measure import measure
    from heterps_hpc.commands.plan import plan
    from heterps_hpc.launch.local import LocalLauncher
    from tests.data.samples import write_mixed

    write_mixed(tmp_path / "data", 200)
    job = Job.parse(
        {
            "name": "described",
            "model": {"name": "ctrdnn"},
            "data": {"train": str(tmp_path / "data")},
            "train": {"batch_size": 64},
            "goal": {"min_samples_per_second": 100.0},
            "plan": {"scheduler": "exact"},
        },
        "test",
    )
    cpu, gpu = small_cluster().pools
    sheets = {"cpu": "cpu_core", "gpu": "v100"}
    pools = [p.model_copy(update={"data_sheet": sheets[p.name]}) for p in (cpu, gpu)]
    cluster, run_dir = Cluster(pools=tuple(pools)), RunDir(tmp_path / "run").create()
    with pytest.raises(UserError, match="no such profile; `heterps measure JOB` makes one"):
        plan(job, cluster, run_dir)
    profile = measure(job, cluster, run_dir, LocalLauncher())
    assert profile.estimated_pools == ["cpu", "gpu"]
    assert all(timing.compute_seconds > 0 for timing in profile.timings)
    profile.save(run_dir.profile)
    layout = plan(job, cluster, run_dir)
    assert layout.plan is not None
    assert layout.plan.estimate.from_data_sheet
    assert layout.plan.gap == 0.0


def test_the_times_of_a_data_sheet_are_its_roofline() -> None:
    """A layer of 1e9 flops a sample on a V100, by hand: arithmetic outlasts memory traffic."""
    sheet = load_sheet("v100")
    layer = LayerInfo(name="fc", kind="fc", flops=1e9, input_bytes=400, output_bytes=400)
    timing = layer_timing(layer, "gpu", sheet, 1000)
    expected = 1e12 / sheet.flops_per_second + 9 * sheet.kernel_seconds
    assert timing.compute_seconds == pytest.approx(expected)
    rows = LayerInfo(name="e", kind="embedding", is_embedding=True, keys_per_sample=10)
    seconds = 2 * 10 * 1000 / sheet.random_rows_per_second + sheet.kernel_seconds
    assert layer_timing(rows, "gpu", sheet, 1000).compute_seconds == pytest.approx(seconds)


def test_money_by_node_counts_whole_nodes() -> None:
    cluster = random_cluster(np.random.default_rng(1), 1, 4)
    pool = cluster.pools[0].model_copy(
        update={"billing": "node", "cores_per_node": 4, "max_ranks": 8, "price_per_hour": 3.0}
    )
    assert pool.hourly_price(5) == 6.0
