"""Every layout learns what one process of plain torch learns, and the same bits every time.

By default a pairwise subset of the cases; with HETERPS_FULL=1 (make test-equivalence) the full
product.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from heterps_hpc.dataset import Dataset
from tests.equivalence.cases import Case, make_job, make_layout, make_model
from tests.equivalence.click_log import write_click_logs
from tests.equivalence.compare import differences, load, same_bits
from tests.equivalence.oracle import Learned
from tests.equivalence.rounding import ask_oracle
from tests.equivalence.suite import examples, full_product, pairwise, rounded, skipping
from tests.mpi_run import mpirun, tail

FULL = os.environ.get("HETERPS_FULL") == "1"
CASES = (full_product() if FULL else pairwise()) + examples() + skipping() + rounded(FULL)
CASES_PER_WORLD = 100
SECONDS_PER_CASE = 10.0  # a case takes half a second; a busy machine must not fail the suite

# one test waits for all cases of its world size
pytestmark = [pytest.mark.slow, pytest.mark.timeout(6 * 3600 if FULL else 1800)]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The click logs of all cases."""
    path = tmp_path_factory.mktemp("click_logs")
    write_click_logs(path)
    return path


@pytest.fixture(scope="session")
def oracle(data: Path) -> Callable[[Case], Learned]:
    """What a case should learn; worked out once for all its layouts."""

    learn = cache(lambda case: ask_oracle(case, data))
    return lambda case: learn(case.oracle)


class Worlds:
    """Runs all cases of one world size in one mpirun, on first need."""

    def __init__(self, cases: list[Case], data: Path, out: Path) -> None:
        self.cases, self.data, self.out = cases, data, out
        self.said: dict[str, str] = {}
        self.sizes = {case.name: self._num_ranks(case) for case in cases}
        self.done: set[int] = set()

    def results(self, case: Case) -> list[Path]:
        """The files of a case's runs."""
        size = self.sizes[case.name]
        if size not in self.done:
            self.done.add(size)
            self._run_all(size)
        if case.name in self.said:
            pytest.fail(self.said[case.name], pytrace=False)
        return sorted(self.out.glob(f"{case.name}.*.npz"))

    def _num_ranks(self, case: Case) -> int:
        job = make_job(case, self.data)
        model = make_model(job, Dataset.open(job.data.train).manifest)
        return make_layout(case, job, model).num_ranks

    def _run_all(self, size: int) -> None:
        # the first case of each layout runs twice: it must give the same bits
        waiting, seen = [], set()
        for case in self.cases:
            if self.sizes[case.name] == size:
                waiting += [case] if case.layout in seen else [case, case]
                seen.add(case.layout)
        while waiting:
            waiting = self._run_some(size, waiting)

    def _run_some(self, size: int, cases: list[Case]) -> list[Case]:
        """Run cases in one world; returns those still to run after one that ended it."""
        now = cases[:CASES_PER_WORLD]
        listed = self.out / "cases.json"
        listed.write_text(json.dumps([case.to_dict() for case in now]))
        script = Path(__file__).with_name("ranks.py")
        limit = 120 + SECONDS_PER_CASE * len(now)
        current = self.out / "current"
        current.unlink(missing_ok=True)  # a world that ends before its first case names none
        outcome = mpirun(size, [script, self.data, self.out, listed], limit)
        if outcome.returncode == 0 and not outcome.timed_out:
            return cases[len(now) :]
        failed = current.read_text() if current.exists() else now[0].name
        why = "did not end in time" if outcome.timed_out else f"ended with {outcome.returncode}"
        self.said[failed] = f"{failed}: ranks {why}\n{tail(outcome.output)}"
        place = max(index for index, case in enumerate(cases) if case.name == failed)
        return cases[place + 1 :]


@pytest.fixture(scope="session")
def worlds(
    data: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Worlds:
    """The runs of all selected cases, grouped by world size."""
    selected = [getattr(item, "callspec", None) for item in request.session.items]
    cases = [spec.params["case"] for spec in selected if spec and "case" in spec.params]
    return Worlds(
        [case for case in cases if isinstance(case, Case)], data, tmp_path_factory.mktemp("results")
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_layout_learns_what_one_process_learns(
    case: Case, worlds: Worlds, oracle: Callable[[Case], Learned]
) -> None:
    """Losses, dense tensors and table rows; repeated runs bit for bit."""
    files = worlds.results(case)
    assert files, f"{case.name} left no result"
    first, *again = [load(file) for file in files]
    assert differences(first, oracle(case), case.precision) == []
    for other in again:
        assert same_bits(first, other) == []
