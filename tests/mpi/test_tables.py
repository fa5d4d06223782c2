"""Tables over ranks: every row on one rank, the same rows however the shards are assigned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.equivalence.cases import LAYOUTS, Case
from tests.equivalence.oracle import Learned
from tests.mpi.conftest import OnRanks

LAYOUT_OF_SIZE = {1: "1", 2: "2", 3: "split slot, one stage", 4: "2+2"}


@pytest.mark.parametrize(
    "size", [pytest.param(n, marks=pytest.mark.mpi(min_size=n)) for n in LAYOUT_OF_SIZE]
)
def test_rows_do_not_depend_on_the_number_of_ranks(
    size: int, data: Path, on_ranks: OnRanks
) -> None:
    """Without a step between, a row is a function of (seed, table, key): bit for bit."""
    from tests.equivalence.ranks import run_case

    def learn(layout: str) -> Learned:
        case = Case("two_embedding", layout, 1, 1, "float64", "plain")
        num_ranks = sum(LAYOUTS[layout].num_ranks)
        # merge_ranks, within run_case, refuses a key that two ranks hold
        learned = on_ranks(num_ranks, lambda comm: run_case(comm, case, data))[0]
        assert isinstance(learned, Learned)
        return learned

    alone, together = learn("1"), learn(LAYOUT_OF_SIZE[size])
    assert alone.rows.keys() == together.rows.keys()
    for table, (keys, vectors) in alone.rows.items():
        assert len(keys)
        assert np.array_equal(keys, together.rows[table][0])
        assert np.allclose(vectors, together.rows[table][1], rtol=1e-10, atol=1e-12)
