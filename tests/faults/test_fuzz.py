"""Mutated checkpoints and datasets give errors: no crash, no huge allocation, no foreign error.

A few hundred mutations in `make test`; HETERPS_FUZZ=10000 and the marker `full` (make test-faults)
for the long form.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONG = int(os.environ.get("HETERPS_FAULT_SEEDS", "2")) > 10
NUM_MUTATIONS = int(os.environ.get("HETERPS_FUZZ", "10000" if LONG else "400"))


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """Every mutation rewrites files; keep them off the disk."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=folder, prefix="heterps-test-") as path:
        yield Path(path)


def mutate_values(first: int, count: int, timeout: float) -> tuple[int, dict[str, int]]:
    """Distinct mutations of job, cluster, layout, profile and the two manifests, and how many of
    each file were refused."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.mutate_values", str(first), str(count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}{done.stderr}"
    found = json.loads(done.stdout)
    return int(found["distinct"]), dict(found["refused"])


def test_mutated_inputs_are_refused_or_right() -> None:
    distinct, refused = mutate_values(0, 150, timeout=100)
    assert distinct >= 140
    assert len(refused) == 6
    assert min(refused.values()) >= 10  # of 25 each: mutations are not all harmless


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_many_mutated_inputs_are_refused_or_right() -> None:
    distinct, refused = mutate_values(1000, 3600, timeout=1700)
    assert distinct >= 2000
    assert min(refused.values()) >= 300  # of 600 each


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", ["checkpoint", "dataset"])
def test_mutated_files_give_errors(what: str, in_memory: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.fuzz", what, "0", str(NUM_MUTATIONS)]
    done = subprocess.run(
        [*command, str(in_memory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1700,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    at = in_memory / "current"
    where = at.read_text() if at.exists() else "before the first mutation"
    assert done.returncode == 0, f"{where}: {done.returncode}\n{done.stdout}{done.stderr}"
    refused = int(done.stdout.split()[0])
    assert refused > NUM_MUTATIONS // 4, done.stdout
