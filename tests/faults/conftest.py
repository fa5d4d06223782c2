"""One click log and one undisturbed run for all faults."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.equivalence.cases import Case
from tests.equivalence.click_log import write_click_log
from tests.faults.runs import Learned, make_run

# two sparse ranks and a dense one, with rows under way at every checkpoint
CASE = Case("ctrdnn", "2+1", 2, 1, "float32", "adam")
NUM_SEEDS = int(os.environ.get("HETERPS_FAULT_SEEDS", "1"))
LONG = NUM_SEEDS > 10  # make test-faults


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The click logs."""
    path = tmp_path_factory.mktemp("click_logs")
    write_click_log(path / "plain")
    return path


@pytest.fixture(scope="session")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Learned:
    """What a run learns that nothing happens to; it saves only at its end."""
    run = make_run(tmp_path_factory.mktemp("undisturbed"), data, CASE, every_steps=None)
    run.start().check()
    return run.learned()


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder for files that are written again and again; keep them off the disk."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=folder, prefix="heterps-test-") as path:
        yield Path(path)
