"""Rows, activations and gradients between ranks: whatever crosses, nothing learned changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.equivalence.cases import LAYOUTS, Case
from tests.equivalence.compare import differences
from tests.equivalence.rounding import ask_oracle
from tests.mpi.conftest import OnRanks

CROSSING = {
    "rows to another rank": Case("ctrdnn", "1+1", 2, 0, "float64", "plain"),
    "partial sums of a split slot": Case(
        "ctrdnn", "split slot, one stage", 1, 1, "float64", "adam"
    ),
    "partial sums to another stage": Case("two_embedding", "split slot", 2, 1, "float64", "plain"),
    "activations before rows": Case("late", "tables last", 4, 1, "float64", "plain"),
    "rows in bfloat16": Case("mixed", "2", 1, 1, "float64", "plain", "bfloat16"),
    "rows in float16": Case("two_embedding", "1+2", 4, 0, "float64", "clip", "float16"),
    "two ranks to two": Case("matchnet", "tables last, 2+2", 4, 1, "float64", "plain"),
}


def sized(name: str) -> object:
    size = sum(LAYOUTS[CROSSING[name].layout].num_ranks)
    return pytest.param(name, id=name, marks=pytest.mark.mpi(min_size=size))


@pytest.mark.parametrize("name", [sized(name) for name in CROSSING])
def test_what_crosses_arrives(name: str, data: Path, on_ranks: OnRanks) -> None:
    from tests.equivalence.ranks import run_case

    case = CROSSING[name]
    size = sum(LAYOUTS[case.layout].num_ranks)
    found = on_ranks(size, lambda comm: run_case(comm, case, data))
    assert differences(found[0], ask_oracle(case.oracle, data), case.precision) == []
