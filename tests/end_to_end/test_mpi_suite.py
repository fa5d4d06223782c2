"""The suite of tests/mpi under pytest-mpi on 1 to 4 ranks, and what happens when a rank fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi_run import ROOT, Outcome, mpirun, mpirun_pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FULL = pytest.mark.full
FAILING = """
import pytest

@pytest.mark.mpi(min_size=2)
def test_one_rank_fails_while_the_others_wait():
    from mpi4py import MPI
    assert MPI.COMM_WORLD.rank != 1, "rank 1 fails alone"
    MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.parametrize(
    "num_ranks", [pytest.param(1, marks=FULL), 2, pytest.param(3, marks=FULL), 4]
)
def test_the_mpi_suite_passes(num_ranks: int) -> None:
    outcome = mpirun_pytest(num_ranks, ["tests/mpi"], timeout=360)
    outcome.check()
    passed = [int(count) for count in re.findall(r"(\d+) passed", outcome.output)]
    skipped = [int(count) for count in re.findall(r"(\d+) skipped", outcome.output)]
    assert len(passed) == num_ranks, outcome.output  # each rank reports once
    assert len(set(passed)) == 1
    assert passed[0] >= 6
    assert (skipped == []) == (num_ranks == 4)  # a smaller world skips what needs more ranks


def run_text(num_ranks: int, text: str, folder: Path, through_mpi4py: bool = True) -> Outcome:
    """Run the text of a test file under pytest-mpi, with the fixtures of tests/mpi."""
    (folder / "test_given.py").write_text(text)
    options = ["--with-mpi", "-q", "-p", "no:cacheprovider", "-p", "tests.mpi.conftest"]
    words = ["-m", "pytest", *options, "-c", ROOT / "pyproject.toml", folder / "test_given.py"]
    return mpirun(num_ranks, words, timeout=100, through_mpi4py=through_mpi4py)


def test_the_page_shows_a_test_that_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    outcome = run_text(3, snippet, tmp_path)
    outcome.check()
    assert outcome.output.count("3 passed") == 3


@pytest.mark.parametrize("through_mpi4py", [True, False])
def test_one_rank_that_fails_ends_the_world(tmp_path: Path, through_mpi4py: bool) -> None:
    """With `python -m mpi4py -m pytest` and, as many start it, `python -m pytest`."""
    outcome = run_text(2, FAILING, tmp_path, through_mpi4py)
    assert not outcome.timed_out
    assert outcome.returncode != 0
    assert "rank 1 fails alone" in outcome.output


def test_plain_pytest_skips_the_suite_and_needs_no_mpi(tmp_path: Path) -> None:
    """As on a login node: mpi4py cannot be imported."""
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no MPI here')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/mpi"]
    done = subprocess.run(
        [*command, "-o", f"pythonpath={tmp_path} ."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "need --with-mpi option to run" in done.stdout
    assert "passed" not in done.stdout


def test_only_that_suite_is_marked_for_pytest_mpi() -> None:
    """Plain pytest would skip it silently; tests that start ranks themselves are marked `ranks`."""
    marked = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"\bmark\.mpi\b", path.read_text()) and path.parent.name != "mpi"
    ]
    assert marked == ["tests/end_to_end/test_mpi_suite.py"]
