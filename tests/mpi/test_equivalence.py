"""Every layout learns what one process of plain torch learns, in a world that is already there.

The long form, with hundreds of cases, starts its own worlds: tests/equivalence.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.equivalence.cases import LAYOUTS, Case
from tests.equivalence.compare import differences, same_bits
from tests.equivalence.rounding import ask_oracle
from tests.mpi.conftest import OnRanks

CASES = [
    Case("ctrdnn", "1", 2, 1, "float64", "plain"),
    Case("mixed", "2", 2, 1, "float64", "adam"),
    Case("two_embedding", "1+1", 1, 2, "float64", "clip"),
    Case("matchnet", "2+1", 4, 1, "float32", "plain"),
    Case("nce", "1+2", 1, 0, "float64", "plain"),
    Case("late", "cpu-gpu-cpu", 4, 1, "float64", "weight"),
    Case("ctrdnn", "2+2", 2, 1, "float64", "evaluate"),
]


def sized(case: Case) -> object:
    size = sum(LAYOUTS[case.layout].num_ranks)
    return pytest.param(case, id=case.name, marks=pytest.mark.mpi(min_size=size))


@pytest.mark.parametrize("case", [sized(case) for case in CASES])
def test_a_layout_learns_what_one_process_learns(case: Case, data: Path, on_ranks: OnRanks) -> None:
    from tests.equivalence.ranks import run_case

    size = sum(LAYOUTS[case.layout].num_ranks)
    found = on_ranks(size, lambda comm: run_case(comm, case, data))
    assert differences(found[0], ask_oracle(case.oracle, data), case.precision) == []


@pytest.mark.mpi(min_size=2)
def test_a_repeated_run_has_the_same_bits(data: Path, on_ranks: OnRanks) -> None:
    from tests.equivalence.ranks import run_case

    case = Case("ctrdnn", "2", 2, 1, "float32", "adam")
    first, second = (on_ranks(2, lambda comm: run_case(comm, case, data))[0] for _ in range(2))
    assert same_bits(first, second) == []
