"""Every layout learns what one process of plain torch learns, and the same bits every time.

By default a pairwise subset of the cases; with HETERPS_FULL=1 (make test-equivalence) the full
product.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.equivalence.cases import Case
from tests.equivalence.compare import differences, load, same_bits
from tests.equivalence.oracle import Learned
from tests.equivalence.suite import (
    examples,
    full_product,
    halves,
    pairwise,
    rounded,
    skipping,
    summed,
)
from tests.equivalence.worlds import Worlds, selected_cases

FULL = os.environ.get("HETERPS_FULL") == "1"
CASES = (full_product() if FULL else pairwise()) + [
    *examples(),
    *skipping(),
    *summed(),
    *halves(),
    *rounded(FULL),
]

# the first test waits for all cases
pytestmark = [pytest.mark.slow, pytest.mark.timeout(6 * 3600 if FULL else 1800)]


@pytest.fixture(scope="session")
def worlds(
    data: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Worlds:
    """The runs of all selected cases, in one world."""
    return Worlds(selected_cases(request), data, tmp_path_factory.mktemp("results"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_layout_learns_what_one_process_learns(
    case: Case, worlds: Worlds, oracle: Callable[[Case], Learned]
) -> None:
    """Losses, dense tensors and table rows; repeated runs bit for bit."""
    files = worlds.results(case)
    assert files, f"{case.name} left no result"
    first, *again = [load(file) for file in files]
    assert differences(first, oracle(case), case.compared_as) == []
    for other in again:
        assert same_bits(first, other) == []
