"""Runs many cases of the equivalence suite, all those of one world size in one mpirun."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from heterps_hpc.dataset import Dataset
from tests.equivalence.cases import Case, make_job, make_layout, make_model
from tests.mpi_run import mpirun, tail

CASES_PER_WORLD = 100
SECONDS_PER_CASE = 10.0  # a case takes half a second; a busy machine must not fail the suite


class Worlds:
    """Runs all cases of one world size in one mpirun, on first need."""

    def __init__(
        self, cases: list[Case], data: Path, out: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.cases, self.data, self.out = cases, data, out
        self.environment = environment
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
        outcome = mpirun(size, [script, self.data, self.out, listed], limit, self.environment)
        if outcome.returncode == 0 and not outcome.timed_out:
            return cases[len(now) :]
        failed = current.read_text() if current.exists() else now[0].name
        why = "did not end in time" if outcome.timed_out else f"ended with {outcome.returncode}"
        self.said[failed] = f"{failed}: ranks {why}\n{tail(outcome.output)}"
        place = max(index for index, case in enumerate(cases) if case.name == failed)
        return cases[place + 1 :]
