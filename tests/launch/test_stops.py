"""Stop means stop, in every phase; and a refused run changes nothing of the run that was there."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heterps_hpc import cli, events
from heterps_hpc.commands.measure import measure
from heterps_hpc.commands.prepare import freeze
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.events import Started, StopWanted
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, Listener
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.launch.stop_requests import SIGNALS, StopAtOnce, StopRequested, StopRequests
from heterps_hpc.rundir import RunDir
from tests.equivalence.click_log import write_click_log
from tests.launch.values import cpu_pool, make_cluster

JOB = """
name: {name}
model: {{name: ctrdnn}}
data: {{train: {data}}}
train: {{batch_size: 64, steps: 4}}
cluster: {cluster}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    write_click_log(tmp_path / "click_log")
    make_cluster(cpu_pool(partition=None)).save(tmp_path / "cluster.json")
    path = tmp_path / "job.yaml"
    data, cluster = tmp_path / "click_log", tmp_path / "cluster.json"
    path.write_text(JOB.format(name="first", data=data, cluster=cluster))
    return path


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class StoppedAtItsEnd(LocalLauncher):
    """The signal comes when the ranks have just done all of their work."""

    def __init__(self) -> None:
        super().__init__()
        self.num_starts = 0

    def start(self, request: LaunchRequest, listener: Listener | None = None) -> ExitCode:
        self.num_starts += 1
        events.record(request.run, Started())
        events.record(request.run, StopWanted(why="SIGTERM"))
        request.run.measured.write_text("{}")
        return ExitCode.DONE


def test_a_signal_while_measuring_is_not_swallowed(job_file: Path, tmp_path: Path) -> None:
    job = Job.load(job_file)
    launcher = StoppedAtItsEnd()
    run = RunDir(tmp_path / "run").create()
    with pytest.raises(StopRequested, match=r"stopped \(SIGTERM\) while measuring pool cpu"):
        measure(job, make_cluster(cpu_pool()), run, launcher)
    assert launcher.num_starts == 1


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_at_any_other_moment_is_one_line_and_code_3(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", lambda: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == ExitCode.STOPPED
    assert capsys.readouterr().err == f"heterps: stopped by {number.name}\n"


def test_signals_are_counted_while_ranks_run_and_given_back_after() -> None:
    with StopAtOnce():
        with StopRequests() as stops:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        assert (stops.count, stops.first) == (2, "SIGTERM")
        with pytest.raises(StopRequested, match="stopped by SIGHUP"):
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)  # another one does not disturb the end


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopAtOnce():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_planning_stops_at_once(tmp_path: Path) -> None:
    """The real command, in a phase without ranks: it waits for ranks of an earlier start."""
    job, run = tmp_path / "job.yaml", RunDir(tmp_path / "run").create()
    make_cluster(cpu_pool(partition=None)).save(tmp_path / "cluster.json")
    job.write_text(JOB.format(name="x", data="nowhere", cluster=tmp_path / "cluster.json"))
    rank = run.join()
    process = subprocess.Popen(
        [sys.executable, "-m", "heterps_hpc.cli", "plan", str(job), "--run-dir", str(run.path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up = time.monotonic() + 30
    while run.holder() is None and time.monotonic() < give_up:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == ExitCode.STOPPED
    assert process.stderr is not None
    assert process.stderr.read() == "heterps: stopped by SIGTERM\n"
    assert rank is not None
    rank.close()


def frozen_files(run: RunDir) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.path.glob("*.json")}


def test_a_refused_run_changes_nothing(job_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(job_file.read_text().replace("first", "other"))
    with freeze(job_file, tmp_path / "run", resume=False) as (_, _, run):
        before = frozen_files(run)
        with pytest.raises(UserError, match="another run"), freeze(other, run.path):
            pass
        assert frozen_files(run) == before
    saved = run.checkpoints / "000000002"
    saved.mkdir()
    (saved / "manifest.json").touch()
    with pytest.raises(UserError, match="--resume"), freeze(other, run.path, resume=False):
        pass
    assert frozen_files(run) == before


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "/r/x"), "/r/x: No space left on device; make"),
        (OSError(28, "No space left on device"), "the disk: No space left on device; make space"),
        (FileNotFoundError(2, "No such file or directory", "/r"), "/r: No such file or directory;"),
    ],
)
def test_errors_of_the_system_are_one_line(
    error: OSError,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == ExitCode.USER_ERROR
    assert capsys.readouterr().err.startswith(f"heterps: {line}")
