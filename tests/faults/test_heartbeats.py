"""Heartbeats as people and launchers read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_hpc.heartbeats import Beat, NodeBeats, describe_all, describe_dead, read_beats
from heterps_hpc.rundir import RunDir

NOW = 1_000.0


def beat(rank: int, **other: object) -> Beat:
    values = {
        "rank": rank,
        "role": "sparse",
        "stage": 0,
        "host": "n1",
        "pid": 4000 + rank,
        "step": 812,
        "phase": "wait gradients",
        "at": NOW - 1,
        "since": NOW - 31,
    }
    return Beat.model_validate(values | other)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path).create()
    for name, beats in {
        "n1": (beat(3, peer=5), beat(4, phase="pull")),
        "n2": (beat(5, role="dense", stage=1, host="n2", at=NOW - 90, phase="backward"),),
    }.items():
        node = NodeBeats(node=name, written_at=NOW, every_seconds=5.0, beats=beats)
        node.save(run.heartbeats / f"{name}.json")
    return run


def test_lines_name_who_waits_for_whom_and_the_silent_come_first(run: RunDir) -> None:
    assert describe_all(run, NOW) == [
        "rank 5 dense stage 1 on n2 has been silent for 90 s (stopped, or its node is gone); last "
        "seen at step 812, in phase 'backward'",
        "rank 3 sparse stage 0 on n1 waits for gradients of rank 5, step 812, 31 s",
        "rank 4 sparse stage 0 on n1 in phase 'pull', step 812, 31 s",
    ]


def test_a_file_in_the_making_is_passed_over(run: RunDir) -> None:
    (run.heartbeats / "n3.json").write_text('{"version": 1, "beats": [')
    (run.heartbeats / "n4.json").write_bytes(b"\xff\xfe")
    assert [found.rank for found in read_beats(run)] == [3, 4, 5]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            "=   PID 4005 RUNNING AT n2\n=   KILLED BY SIGNAL: 9 (Killed)",
            "rank 5 dense stage 1 on n2, step 812, phase 'backward': killed by signal 9",
        ),
        (
            "mpirun noticed that process rank 4 with PID 4004 on node n1 exited on signal 11",
            "rank 4 sparse stage 0 on n1, step 812, phase 'pull': killed by signal 11",
        ),
        (
            "srun: error: n1: task 3: Killed",
            "rank 3 sparse stage 0 on n1, step 812, phase 'wait gradients': killed",
        ),
        (
            "srun: error: n1: tasks 0-1,4: Exited with exit code 1",
            "rank 4 sparse stage 0 on n1, step 812, phase 'pull': ended with exit code 1",
        ),
        (  # the others were ended by it
            "srun: error: n1: task 3: Exited with exit code 4\nsrun: error: n2: tasks 5-7: Killed",
            "rank 5 dense stage 1 on n2, step 812, phase 'backward': killed",
        ),
        ("all is well", None),
    ],
)
def test_the_dead_are_found_in_the_launchers_output(
    run: RunDir, printed: str, expected: str | None
) -> None:
    assert describe_dead(run, printed.splitlines()) == expected
