"""A resumed run is the uninterrupted one: bit for bit on its layout, in numbers on any other."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.equivalence.click_log import write_click_log
from tests.mpi_run import mpirun, tail

RANKS = Path(__file__).with_name("resume_ranks.py")

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(600)]


def job_names() -> list[str]:
    """Names of the jobs, read without importing MPI into this process."""
    (jobs,) = [
        node.value
        for node in ast.parse(RANKS.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "JOBS"
    ]
    assert isinstance(jobs, ast.List)
    names = [ast.literal_eval(job.args[0]) for job in jobs.elts if isinstance(job, ast.Call)]
    return [*names, "warm start with new slots", "warm start from an export"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What differed, by job."""
    data = tmp_path_factory.mktemp("data")
    write_click_log(data / "plain")
    write_click_log(data / "weight", weight=True)
    out = tmp_path_factory.mktemp("runs")
    outcome = mpirun(3, [RANKS, data, out, out / "result.json"], timeout=420)
    found = json.loads((out / "result.json").read_text()) if (out / "result.json").exists() else {}
    why = "did not end in time" if outcome.timed_out else f"ended with {outcome.returncode}"
    for name in job_names():
        found.setdefault(name, [f"ranks {why}:\n{tail(outcome.output)}"])
    return dict(found)


@pytest.mark.parametrize("name", job_names())
def test_a_resumed_run_is_the_run(name: str, outcomes: dict[str, list[str]]) -> None:
    assert outcomes[name] == []
