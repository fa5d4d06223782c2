"""Signals, full disks, errors and stops: each ends, or continues, the way it should."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from heterps_hpc.checkpoint.store import steps_of
from heterps_hpc.exit_codes import ExitCode
from tests.faults.conftest import CASE, LONG
from tests.faults.runs import (
    FAULTY_PROGRAM,
    Learned,
    Run,
    different_bits,
    different_numbers,
    events,
    make_run,
    metrics,
)
from tests.mpi_run import Outcome

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(600)]


def disturb(run: Run, **fault: Any) -> Outcome:
    return run.start(environment={"HETERPS_FAULT": json.dumps(fault)}, program=FAULTY_PROGRAM)


OTHER_LAYOUTS = ["1", "3", "split slot", "tables last, 2+2", "cpu-gpu-cpu"]


def test_a_signal_stops_and_any_layout_continues(
    data: Path, undisturbed: Learned, tmp_path: Path
) -> None:
    """One rank gets SIGUSR1: all agree on a batch, save, and end with the code for it."""
    run = make_run(tmp_path, data, CASE, every_steps=None, train={"metrics_every": 1})
    outcome = disturb(run, rank=2, at="step", count=5, do="signal")
    assert outcome.returncode == ExitCode.STOPPED, outcome.output
    (step,) = steps_of(run.directory.checkpoints)
    assert 5 <= step <= 8  # the vote counts a batch or two later
    stopped = {event["rank"]: event["code"] for event in events(run, "rank_end")}
    assert stopped == dict.fromkeys(range(3), int(ExitCode.STOPPED))

    layouts = OTHER_LAYOUTS if LONG else OTHER_LAYOUTS[2:3]
    for name in layouts:
        again = make_run(tmp_path / name, data, CASE, name, every_steps=None)
        again.directory.checkpoints.rmdir()
        shutil.copytree(run.directory.checkpoints, again.directory.checkpoints)
        again.start().check()
        assert different_numbers(again.learned(), undisturbed, 1e-5) == []

    run.start().check()
    assert different_bits(run.learned(), undisturbed) == []
    assert [line["step"] for line in metrics(run) if line["kind"] == "train"] == list(range(1, 13))


def test_a_full_disk_is_reported_and_a_run_without_its_last_save_is_not_done(
    data: Path, undisturbed: Learned, tmp_path: Path
) -> None:
    run = make_run(tmp_path, data, CASE)
    outcome = disturb(run, rank=1, at="write", count=30, do="full")
    assert outcome.returncode == ExitCode.NOT_SAVED, outcome.output
    (line,) = [line for line in outcome.output.splitlines() if "heterps: " in line]
    assert "trained to the end, but its last state is not saved" in line
    assert "No space left on device" in line
    assert "No space left on device" in run.directory.rank_log(0).read_text()
    failed = events(run, "save_failed")
    assert failed
    assert "rank 1 sparse stage 0 on" in failed[0]["why"]
    assert {event["code"] for event in events(run, "rank_end")} == {int(ExitCode.NOT_SAVED)}
    run.start().check()  # there is space again: what could not be saved is done again
    assert different_bits(run.learned(), undisturbed) == []
    steps = [line["step"] for line in metrics(run) if line["kind"] == "train"]
    assert steps == sorted(set(steps))


def test_an_error_ends_the_world_and_names_the_place(data: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, data, CASE)
    outcome = disturb(run, rank=2, at="step", count=4, do="raise")
    assert outcome.returncode == ExitCode.RANK_FAILED
    (end,) = events(run, "rank_end")
    assert time.time() - end["time"] < 30  # and not only when a timeout ends the others
    said = "rank 2 dense stage 1 on "
    assert said in outcome.output
    assert "step 2" in outcome.output or "step 3" in outcome.output
    assert "RuntimeError: a fault that was asked for" in outcome.output
    assert said in run.reasons()


def test_the_watchdog_names_a_stopped_rank(data: Path, tmp_path: Path) -> None:
    watch = {"heartbeat_seconds": 1.0, "stall_seconds": 8.0}  # building may take some on busy cores
    run = make_run(tmp_path, data, CASE, watch=watch)
    outcome = disturb(run, rank=1, at="step", count=6, do="stop")
    assert not outcome.timed_out
    assert outcome.returncode != 0
    assert "rank 1 sparse stage 0 on" in outcome.output
    assert "has been silent for" in outcome.output
    # the others: in a message from it, or in a sum with it
    assert "waits for" in outcome.output or "in phase 'reduce'" in outcome.output
    assert int(ExitCode.STALLED) in {event["code"] for event in events(run, "rank_end")}
    (report,) = run.directory.logs.glob("stall-*.txt")
    text = report.read_text()
    silent = set(re.findall(r"rank (\d+) [^\n]* has been silent for", text))
    assert silent == {"1"}, "only the stopped rank is silent"
    stacks = dict(re.findall(r"^rank (\d+):\n(.*?)(?=^rank \d+:\n|\Z)", text, re.M | re.S))
    assert sorted(stacks) == ["0", "1", "2"]
    assert stacks["1"].strip() == "no stack: the rank is silent"
    # wherever in a step they wait for it: in a message, a sum or a vote between two steps
    assert all("training.py" in stacks[rank] for rank in "02")


def test_the_watchdog_names_a_rank_that_is_stopped_before_it_joins_the_others(
    data: Path, tmp_path: Path
) -> None:
    watch = {"heartbeat_seconds": 0.4, "stall_seconds": 6.0}
    run = make_run(tmp_path, data, CASE, watch=watch)
    outcome = disturb(run, rank=1, at="check", count=1, do="stop")
    assert not outcome.timed_out
    assert "rank 1 did not start, or was stopped while starting: 2 of 3 ranks wait" in (
        outcome.output
    )
    assert int(ExitCode.STALLED) in {event["code"] for event in events(run, "rank_end")}


@pytest.mark.full
def test_a_stall_ends_the_run_though_nothing_can_be_written(data: Path, tmp_path: Path) -> None:
    watch = {"heartbeat_seconds": 0.4, "stall_seconds": 3.0}
    run = make_run(tmp_path, data, CASE, watch=watch)
    outcome = disturb(run, rank=1, at="step", count=6, do="unwritable")
    assert not outcome.timed_out
    assert "rank 1 sparse stage 0 on" in outcome.output
    assert int(ExitCode.STALLED) in {event["code"] for event in events(run, "rank_end")}


def test_a_slow_rank_is_reported_and_training_continues(data: Path, tmp_path: Path) -> None:
    watch = {"heartbeat_seconds": 0.2, "stall_seconds": 1.0, "on_stall": "report"}
    run = make_run(tmp_path, data, CASE, watch=watch)
    disturb(run, rank=2, at="step", count=6, do="sleep", seconds=8.0).check()
    lines = [line for stall in events(run, "stall") for line in stall["ranks"]]
    assert any("waits for" in line and "of rank 2" in line for line in lines)
