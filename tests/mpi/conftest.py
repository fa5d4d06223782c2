"""Tests inside an MPI world, for pytest-mpi: every rank runs pytest, all of them the same tests.

    mpirun -n 2 python -m mpi4py -m pytest --with-mpi tests/mpi

A test runs its work on the first ranks of the world, as many as it needs, and shares what it found
with all of them before it asserts anything: then all ranks pass or fail together. Where one rank
fails alone, the others may be waiting for it, so the first failure ends the world.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.equivalence.click_log import write_click_logs

_failures: list[int] = []


def _world_size(config: pytest.Config) -> int:
    """Ranks of this world; 1 where pytest runs without MPI, which is then not even imported."""
    if not (config.getoption("--with-mpi") or config.getoption("--only-mpi")):
        return 1
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.size)


def pytest_configure(config: pytest.Config) -> None:
    """Stop at the first failure: a rank that continued would meet the others in the wrong call."""
    if _world_size(config) > 1:
        config.option.maxfail = 1


def pytest_sessionfinish(exitstatus: int) -> None:
    """Remember a failure until the report is printed."""
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        _failures.append(int(exitstatus))


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the ranks that may wait for this one, also without `-m mpi4py`."""
    if _failures and _world_size(config) > 1:
        from mpi4py import MPI

        config.get_terminal_writer().flush()
        MPI.COMM_WORLD.Abort(_failures[0])


@pytest.fixture
def shared_path(tmp_path: Path) -> Path:
    """A folder of this test that all ranks know."""
    from mpi4py import MPI

    return Path(MPI.COMM_WORLD.bcast(str(tmp_path)))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Click logs, written by rank 0 and known to all."""
    from mpi4py import MPI

    path = None
    if MPI.COMM_WORLD.rank == 0:
        path = tmp_path_factory.mktemp("click_logs")
        write_click_logs(path)
    found = MPI.COMM_WORLD.bcast(path)
    assert found is not None
    return Path(found)


OnRanks = Callable[[int, Callable[[Any], Any]], list[Any]]


@pytest.fixture
def on_ranks() -> OnRanks:
    """on_ranks(n, work): `work(comm)` on the first n ranks; what each returned, on all ranks."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def run(num_ranks: int, work: Callable[[Any], Any]) -> list[Any]:
        comm = world.Split(0 if world.rank < num_ranks else MPI.UNDEFINED, world.rank)
        mine = None
        if comm != MPI.COMM_NULL:
            mine = work(comm)
            comm.Free()
        found: list[Any] = world.allgather(mine)
        return found[:num_ranks]

    return run
