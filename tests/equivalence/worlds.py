"""Runs many cases of the equivalence suite in one mpirun: starting ranks takes longer than a case.

Cases that need few ranks run side by side, each on ranks of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from heterps_hpc.dataset import Dataset
from tests.equivalence.cases import Case, make_job, make_layout, make_model
from tests.equivalence.groups import Group
from tests.mpi_run import mpirun, tail

MAX_RANKS = 5  # of any case
ROUNDS_PER_WORLD = 100
SECONDS_PER_CASE = 10.0  # a case takes half a second; a busy machine must not fail the suite


Round = list[Group]  # what runs at once


def selected_cases(request: pytest.FixtureRequest) -> list[Case]:
    """The cases of all selected tests that use the fixture which asks."""
    return [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and request.fixturename in item.fixturenames
    ]


class Worlds:
    """Runs all cases on first need, in a world of `num_ranks`."""

    def __init__(
        self,
        cases: list[Case],
        data: Path,
        out: Path,
        environment: Mapping[str, str] | None = None,
        *,
        num_ranks: int = MAX_RANKS,
        twice: Callable[[Case], object] = lambda case: case.layout,
    ) -> None:
        """Of cases for which `twice` is the same the first runs twice: it must give the same bits.

        None: once. Cases of more than `num_ranks` are left out.
        """
        self.data, self.out, self.num_ranks = data, out, num_ranks
        self.environment = environment
        self.said: dict[str, str] = {}
        self.sizes = {case.name: self._num_ranks(case) for case in cases}
        self._waiting = self._rounds(cases, twice)

    def results(self, case: Case) -> list[Path]:
        """The files of a case's runs."""
        while self._waiting:
            self._waiting = self._run_some(self._waiting)
        if case.name in self.said:
            pytest.fail(self.said[case.name], pytrace=False)
        return sorted(self.out.glob(f"{case.name}.*.npz"))

    def _num_ranks(self, case: Case) -> int:
        job = make_job(case, self.data)
        model = make_model(job, Dataset.open(job.data.train).manifest)
        return make_layout(case, job, model).num_ranks

    def _rounds(self, cases: Sequence[Case], twice: Callable[[Case], object]) -> list[Round]:
        waiting: list[tuple[Case, int]] = []
        seen = set()
        for case in cases:
            if self.sizes[case.name] <= self.num_ranks:
                kind = (self.sizes[case.name], twice(case))
                once = kind[1] is None or kind in seen
                waiting += [(case, 0)] if once else [(case, 0), (case, 1)]
                seen.add(kind)
        waiting.sort(key=lambda run: -self.sizes[run[0].name])
        rounds = []
        while waiting:
            rounds.append(self._take_round(waiting))
        return rounds

    def _take_round(self, waiting: list[tuple[Case, int]]) -> Round:
        """Take as many runs, the largest first, as there are ranks for."""
        found: Round = []
        first = 0
        for case, number in list(waiting):
            size = self.sizes[case.name]
            if first + size <= self.num_ranks:
                found.append(Group(case, number, first, size))
                waiting.remove((case, number))
                first += size
        return found

    def _run_some(self, rounds: list[Round]) -> list[Round]:
        """Run cases in one world; returns what is still to run after a round that ended it."""
        now = rounds[:ROUNDS_PER_WORLD]
        listed = self.out / "rounds.json"
        listed.write_text(json.dumps([[asdict(group) for group in each] for each in now]))
        script = Path(__file__).with_name("ranks.py")
        limit = 300 + SECONDS_PER_CASE * sum(len(each) for each in now)
        current = self.out / "current"
        current.write_text("0")
        arguments = [script, self.data, self.out, listed]
        num_ranks = max(each[-1].ranks.stop for each in now)
        outcome = mpirun(num_ranks, arguments, limit, self.environment)
        if outcome.returncode == 0 and not outcome.timed_out:
            return rounds[len(now) :]
        why = "did not end in time" if outcome.timed_out else f"ended with {outcome.returncode}"
        place = int(current.read_text())
        for group in now[place]:
            if not group.result(self.out).exists():
                together = ", ".join(other.case.name for other in now[place])
                text = f"ranks that ran {together} {why}\n{tail(outcome.output)}"
                self.said[group.case.name] = text
        return rounds[place + 1 :]
