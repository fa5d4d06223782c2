"""How far a run is, from its files; and the line that shows it."""

import io
import itertools
import json
import logging
import time
from pathlib import Path

import pytest
from rich.console import Console

from heterps_hpc import events
from heterps_hpc.commands.tasks import Task
from heterps_hpc.events import Ended, Launched, Started, Submitted, TaskEnded, TrainingBegan
from heterps_hpc.heartbeats import Beat, NodeBeats
from heterps_hpc.launch import live_line
from heterps_hpc.launch.live_line import LineText, LiveLine
from heterps_hpc.launch.run_progress import RunProgress, fit_words, read_progress
from heterps_hpc.rundir import RunDir
from tests.launch.values import make_cluster, make_job, make_layout


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "run").create()
    cluster = make_cluster()
    make_job().save(directory.job)
    cluster.save(directory.cluster)
    make_layout(cluster, ("cpu", 2), ("gpu", 1)).save(directory.layout)
    return directory


def progress_of(run: RunDir, now: float | None = None) -> RunProgress:
    found = read_progress(run, now)
    assert found is not None
    return found


def test_measuring_names_the_pool_and_counts(run: RunDir) -> None:
    assert read_progress(run) is None
    Task(run, "measure").part("pool gpu (2 of 2) with 2 ranks", 4, 6)
    now = time.time()
    assert progress_of(run, now + 7).words() == [
        "measuring pool gpu (2 of 2) with 2 ranks",
        "4 of 6",
        "7 s",
    ]
    events.record(run, TaskEnded(task="measure"))
    assert read_progress(run) is None
    assert not events.read(run).was_launched


def started(run: RunDir, now: float) -> None:
    events.record(run, Launched(on="local", time=now - 121))
    events.record(run, Started(launcher="mpirun", time=now - 120))


def write_metrics(run: RunDir, *records: dict[str, object]) -> None:
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_training_has_steps_time_and_money(run: RunDir) -> None:
    """By hand: 75 batches of the job at 100 samples/s are left; every hour costs what pools do."""
    now = time.time()
    started(run, now)
    assert progress_of(run).doing == "starting ranks"
    events.record(run, TrainingBegan(step=0, total_steps=100, time=now - 100))
    train = {"kind": "train", "step": 20, "loss": 0.5, "auc": 0.6, "samples_per_second": 100.0}
    write_metrics(run, train)
    assert progress_of(run, now).auc is None  # that of the last batches says nothing of a model
    write_metrics(run, {"kind": "evaluation", "step": 25, "auc": 0.7}, *[train] * 500)
    found = progress_of(run, now)
    batch_size = make_job().train.batch_size
    assert (found.doing, found.done, found.total) == ("training", 25, 100)
    assert found.remaining_seconds == pytest.approx(75 * batch_size / 100.0)
    cluster = make_cluster()
    hourly = cluster.pool("cpu").hourly_price(2) + cluster.pool("gpu").hourly_price(1)
    assert found.money == pytest.approx(hourly * 120 / 3600)
    assert found.expected_money == pytest.approx(
        hourly * (120 + found.remaining_seconds) / 3600  # type: ignore[operator]
    )
    line = " · ".join(found.words())
    assert "step 25/100 (25 %)" in line
    assert "loss 0.5000" in line
    assert "100 samples/s" in line
    assert "AUC 0.7000" in line
    events.record(run, Ended(code=0, time=now - 20))
    found = progress_of(run, now + 1000)
    assert (found.doing, found.elapsed_seconds) == ("ended", pytest.approx(100))


def test_heartbeats_are_newer_than_metrics(run: RunDir) -> None:
    now = time.time()
    started(run, now)
    events.record(run, TrainingBegan(total_steps=100))
    beat = {"role": "dense", "stage": 0, "host": "n", "pid": 1, "at": now, "since": now}
    beats = tuple(
        Beat.model_validate({**beat, "rank": rank, "step": step, "phase": phase})
        for rank, step, phase in ((0, 41, "pull"), (1, 40, "evaluate"))
    )
    node = NodeBeats(node="n", written_at=now, every_seconds=5.0, beats=beats)
    node.save(run.heartbeats / "n.json")
    found = progress_of(run)
    assert (found.doing, found.done) == ("evaluating", 40)
    in_pass = tuple(
        each.model_copy(update={"pass_done": done, "pass_total": 120})
        for each, done in zip(beats, (31, 30), strict=True)
    )
    node.model_copy(update={"beats": in_pass}).save(run.heartbeats / "n.json")
    assert progress_of(run).words()[:2] == ["evaluating", "batch 30/120 (25 %)"]


def test_a_job_that_waits_again_costs_nothing_meanwhile(run: RunDir) -> None:
    now = time.time()
    events.record(run, Launched(on="slurm", time=now - 400))
    events.record(run, Submitted(job_id=7, time=now - 400))
    assert progress_of(run, now).words()[:2] == ["waiting in the queue", "6 min 40 s"]
    events.record(run, Started(launcher="srun", job_id=7, time=now - 300))
    events.record(run, Ended(code=4, again=True, time=now - 240))
    again = progress_of(run, now)
    assert again.doing == "waiting in the queue"
    assert again.money == progress_of(run, now + 1000).money


def test_numbers_are_never_cut() -> None:
    words = ["training", "step 1,000/2,000 (50 %)", "ETA 1 min 05 s", "loss 0.5000"]
    assert fit_words(words, 80) == " · ".join(words)
    two_lines = "training · step 1,000/2,000 (50 %)\nETA 1 min 05 s · loss 0.5000"
    assert fit_words(words, 40) == two_lines
    assert fit_words(words, 40, max_lines=1) == "training · step 1,000/2,000 (50 %)"
    assert fit_words([], 40) == ""


def test_a_terminal_gets_one_line_and_a_file_gets_plain_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_line, "_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(live_line, "_PLAIN_SECONDS", 0.01)
    words = ["training", "step 1/2", "a part that does not fit into this terminal any more"]
    terminal = io.StringIO()
    with LiveLine(lambda: LineText(words), Console(file=terminal, force_terminal=True, width=40)):
        pass
    assert "training · step 1/2" in terminal.getvalue()
    assert "fit" not in terminal.getvalue()
    count = itertools.count()
    file = Console(file=io.StringIO(), force_terminal=False)
    line = LiveLine(lambda: LineText(words, next(count)), file)
    with caplog.at_level(logging.INFO), line:
        wait_for_lines(caplog, 3)
        with line.paused():
            before = len(caplog.messages)
            time.sleep(0.05)
            assert len(caplog.messages) == before
    assert caplog.messages[0] == " · ".join(words)
    assert len(caplog.messages) >= 3


def test_a_file_gets_a_line_when_there_is_news_else_after_a_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_line, "_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(live_line, "_PLAIN_SECONDS", 0.01)
    looks, step = 0, 1

    def describe() -> LineText:
        nonlocal looks
        looks += 1
        progress = RunProgress("training", done=step, total=9, elapsed_seconds=looks, money=looks)
        return LineText(progress.words(), progress.news)

    file = Console(file=io.StringIO(), force_terminal=False)
    with caplog.at_level(logging.INFO), LiveLine(describe, file):
        wait_for_lines(caplog, 1)
        enough, give_up = looks + 10, time.monotonic() + 5
        while looks < enough and time.monotonic() < give_up:
            time.sleep(0.01)  # only time and money change meanwhile
        assert len(caplog.messages) == 1
        step = 2
        wait_for_lines(caplog, 2)
        monkeypatch.setattr(live_line, "_QUIET_SECONDS", 0.05)
        wait_for_lines(caplog, 4)
    assert ["step 2/9" in line for line in caplog.messages[:4]] == [False, True, True, True]


def wait_for_lines(caplog: pytest.LogCaptureFixture, count: int) -> None:
    give_up = time.monotonic() + 10
    while len(caplog.messages) < count and time.monotonic() < give_up:
        time.sleep(0.01)
