"""Samples of weight 0 count for nothing, also where a batch has no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.equivalence.cases import Case
from tests.equivalence.click_log import write_click_log
from tests.equivalence.compare import differences
from tests.equivalence.rounding import ask_oracle
from tests.mpi.conftest import OnRanks

pytestmark = pytest.mark.mpi


def test_a_batch_whose_weights_are_all_0_changes_nothing(
    shared_path: Path, on_ranks: OnRanks
) -> None:
    from tests.equivalence.ranks import run_case

    case = Case("ctrdnn", "1", 2, 0, "float64", "weight")

    def work(comm: Any) -> Any:
        write_click_log(shared_path / "weight", weight=0.0)
        return run_case(comm, case, shared_path)

    found = on_ranks(1, work)[0]
    assert found.losses == [0.0] * len(found.losses)
    assert all(np.isfinite(value).all() for value in found.dense.values())
    assert differences(found, ask_oracle(case.oracle, shared_path), case.precision) == []
