"""The example at the paper's scale: its plan uses both pools, and README shows what it saves."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from heterps_hpc.commands.measure import measure
from heterps_hpc.commands.plan import decide
from heterps_hpc.commands.prepare import ready_data
from heterps_hpc.job_inputs import load_inputs
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.plan.terminal import comparison_table
from heterps_hpc.planning_result import PlanningResult
from heterps_hpc.rundir import RunDir

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> PlanningResult:
    folder = tmp_path_factory.mktemp("example")
    for name in ("ctr_paper.yaml", "cluster_paper.yaml"):
        shutil.copy(ROOT / "examples" / name, folder)
    job, cluster = load_inputs(folder / "ctr_paper.yaml", ["plan.scheduler=exact"])
    ready_data(job)
    profile = measure(job, cluster, RunDir(folder / "run").create(), LocalLauncher())
    return decide(job, cluster, profile)[0]


def test_the_best_plan_uses_both_pools_and_is_far_cheaper_than_either(
    result: PlanningResult,
) -> None:
    assert {stage.pool for stage in result.plan.stages} == {"cpu", "v100"}
    alone = {p.scheduler: p.estimate.money for p in result.alternatives}
    for rule in ("cpu-only", "gpu-only"):
        assert alone[rule] > 2 * result.plan.estimate.money
    assert result.plan.gap == 0.0


def test_readme_shows_what_is_printed(result: PlanningResult) -> None:
    readme = (ROOT / "README.md").read_text()
    for line in result.outcome:
        assert line in readme
    screen = io.StringIO()
    Console(file=screen, width=100).print(comparison_table(result))
    rows = [line for line in screen.getvalue().splitlines() if "frontier" not in line]
    printed = {" ".join(line.split()) for line in readme.splitlines()}
    for row in rows[2:]:
        assert "──" in row or " ".join(row.split()) in printed
