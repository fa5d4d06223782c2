"""Mutated checkpoints and datasets give errors: no crash, no huge allocation, no foreign error.

A few hundred mutations in `make test`; HETERPS_FUZZ=10000 and the marker `full` (make test-faults)
for the long form.
"""

from __future__ import annotations

import copy
import functools
import json
import operator
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from heterps_hpc.errors import UserError
from tests.faults.conftest import LONG
from tests.faults.fuzz import seal_manifest
from tests.faults.mutate_values import Inputs, places
from tests.mpi_run import mpirun

ROOT = Path(__file__).resolve().parents[2]
NUM_MUTATIONS = int(os.environ.get("HETERPS_FUZZ", "10000" if LONG else "400"))


def mutate_values(
    folder: Path, first: int, count: int, timeout: float
) -> tuple[int, dict[str, int]]:
    """Distinct mutations of job, cluster, layout, profile and the two manifests, and how many of
    each file were refused."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.mutate_values", str(folder), str(first), str(count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}{done.stderr}"
    found = json.loads(done.stdout)
    return int(found["distinct"]), dict(found["refused"])


def run_accepted(folder: Path, timeout: float) -> dict[str, int]:
    """In how many ways the accepted ones ended, as tests.faults.run_accepted names them."""
    done = mpirun(3, ["-m", "tests.faults.run_accepted", folder], timeout)
    current = folder / "current"
    at = current.read_text() if current.exists() else "before the first file"
    assert done.returncode == 0, f"{at}: {done.output}"
    return dict(json.loads(done.output.splitlines()[-1]))


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("first", range(0, 3000 if LONG else 150, 150))
def test_mutated_inputs_are_refused_or_right(first: int, in_memory: Path) -> None:
    distinct, refused = mutate_values(in_memory, first, 150, timeout=100)
    assert distinct >= 140
    assert len(refused) == 6
    assert min(refused.values()) >= 8  # of 25 each: mutations are not all harmless
    assert run_accepted(in_memory, timeout=250)["right"] >= 2


def test_a_boolean_is_no_number_and_a_number_no_boolean(in_memory: Path) -> None:
    inputs = Inputs(in_memory)
    tried = Counter[str]()
    for what, sound in inputs.sound.items():
        for where in places(sound):
            if what == "checkpoint" and where[0] in ("shards", "must_match", "version"):
                continue  # held to files and to the job; says which other keys there are
            changed = copy.deepcopy(sound)
            parent = functools.reduce(operator.getitem, where[:-1], changed)
            if isinstance(parent[where[-1]], bool):
                parent[where[-1]], why = 1, "expected true or false, got a number"
            elif isinstance(parent[where[-1]], int | float):
                parent[where[-1]], why = True, "expected a number, got true"
            else:
                continue
            tried[what] += 1
            path = in_memory / "changed.json"
            path.write_text(json.dumps(changed))
            if "checksum" in changed:
                seal_manifest(path)
            with pytest.raises(UserError, match=why):
                inputs.use[what](path)
    assert len(tried) == 6


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
