"""Ranks are killed at random moments; after a restart nothing that was learned differs."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest

from heterps_hpc.checkpoint import newest
from heterps_hpc.checkpoint.verify import verify
from tests.faults.conftest import CASE, NUM_SEEDS
from tests.faults.runs import FAULTY_PROGRAM, Learned, different_bits, make_run

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(600)]

NUM_RANKS = 3
MOST_PHASES = 60  # every rank goes through more than these


def shared_memory() -> set[str]:
    """Files of MPICH that take memory of this machine, and that no process uses any more."""
    found = {str(path) for path in Path("/dev/shm").glob("mpich_shm_*")}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has ended
            found -= {line.split()[-1] for line in maps.read_text().splitlines() if "/" in line}
    return found


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_a_killed_rank_costs_nothing_but_time(
    seed: int, data: Path, undisturbed: Learned, tmp_path: Path
) -> None:
    """Ranks take turns, so that every role is hit; the moment is drawn from the seed."""
    draw = random.Random(seed)
    fault = {
        "rank": seed % NUM_RANKS,
        "at": "phase",
        "count": draw.randrange(1, MOST_PHASES),
        "delay": draw.choice([0.0, 0.0, draw.random() * 0.05]),
        "do": "kill",
    }
    run = make_run(tmp_path, data, CASE)
    before = shared_memory()
    hit = run.start(environment={"HETERPS_FAULT": json.dumps(fault)}, program=FAULTY_PROGRAM)
    assert fault["count"] == 1 or shared_memory() <= before  # 1: before ranks have met
    assert not hit.timed_out
    assert hit.returncode != 0, f"{fault} did not happen"
    left = newest(run.directory.checkpoints)
    if left is not None:
        assert verify(left).problems == []
    run.start().check()
    assert different_bits(run.learned(), undisturbed) == []


SAVING = [
    ("capture", 1, 0),
    ("write", 1, 1),
    ("write", 9, 2),
    ("fsync", 1, 1),
    ("rename", 1, 2),
    ("publish", 1, 0),
    ("rename", 3, 0),  # of rank 0: its shard, a heartbeat, then the manifest
    ("sync directory", 1, 0),
    ("sweep", 1, 0),
    ("sweep", 2, 0),
]


@pytest.mark.full
@pytest.mark.parametrize(("at", "count", "rank"), SAVING)
def test_a_kill_while_saving_costs_nothing_but_time(
    at: str, count: int, rank: int, data: Path, undisturbed: Learned, tmp_path: Path
) -> None:
    fault = {"rank": rank, "at": at, "count": count, "do": "kill"}
    run = make_run(tmp_path, data, CASE)
    hit = run.start(environment={"HETERPS_FAULT": json.dumps(fault)}, program=FAULTY_PROGRAM)
    assert hit.returncode != 0, f"{fault} did not happen"
    left = newest(run.directory.checkpoints)
    if left is not None:
        assert verify(left).problems == []
    run.start().check()
    assert different_bits(run.learned(), undisturbed) == []
