"""A disk that fills up at any write of a run: never a wrong "done", never a checkpoint lost.

`make test-faults` fails every single write of a rank and of the command, which
measures and plans or has its plan; `make test` a few.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heterps_hpc.exit_codes import ExitCode
from tests.faults.conftest import LONG
from tests.mpi_run import ROOT

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(3600)]

SOURCE = Path(__file__).with_name("full_disk.c")


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes writes fail."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler on the path: `apt install gcc`")
    library = tmp_path_factory.mktemp("full_disk") / "full_disk.so"
    options = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([compiler, *options, str(SOURCE), "-ldl"], check=True, timeout=60)
    return library


@pytest.mark.parametrize(
    ("what", "every"),
    [("rank", 1), ("command", 1), ("measuring", 1)] if LONG else [("rank", 60)],
)
def test_a_full_disk_is_never_called_done(
    what: str, every: int, full_disk: Path, in_memory: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.full_disk_runs", str(in_memory), what, str(every)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": str(full_disk)},
        capture_output=True,
        text=True,
        timeout=3500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    codes = {int(code) for code in json.loads(done.stdout)}
    assert codes - {ExitCode.DONE}, "no write has failed"
    may_be = {ExitCode.DONE, ExitCode.USER_ERROR, ExitCode.RANK_FAILED, ExitCode.NOT_SAVED}
    assert codes <= may_be
