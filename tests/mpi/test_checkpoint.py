"""A run that is stopped and resumed is the run: bit for bit, and in numbers on another layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.equivalence.cases import Case

# the layouts of a world: the one that is interrupted, and another that continues
LAYOUTS_OF_SIZE = {1: ("1",), 2: ("2", "1+1"), 3: ("2+1", "3"), 4: ("2+2", "1+3")}


@pytest.mark.mpi
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_resumed_run_is_the_run(staleness: int, data: Path, shared_path: Path) -> None:
    from mpi4py import MPI

    from tests.checkpoint.resume_ranks import Interrupted, check

    world = MPI.COMM_WORLD
    if world.size not in LAYOUTS_OF_SIZE:
        pytest.skip(f"no layouts for a world of {world.size} ranks")
    layout, *others = LAYOUTS_OF_SIZE[world.size]
    case = Case("ctrdnn", layout, 2, staleness, "float32", "adam")
    found = check(Interrupted("resumed", case, 4, tuple(others)), data, shared_path)
    assert world.bcast(found) == []
