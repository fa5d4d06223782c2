"""Stop means stop, in every phase; and a refused run changes nothing of the run that was there."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heterps_hpc import cli, events, run_lock
from heterps_hpc.commands.launch import launch, start
from heterps_hpc.commands.measure import measure
from heterps_hpc.commands.prepare import freeze, model_of, ready_data
from heterps_hpc.commands.run import run as run_job
from heterps_hpc.commands.run import write_report
from heterps_hpc.config import Job, TableOptions
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.events import Started, StopWanted
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, Listener
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.launch.stop_requests import SIGNALS, StopAtOnce, StopRequested, StopRequests
from heterps_hpc.rundir import RunDir
from tests.checkpoint.made import make_checkpoint
from tests.equivalence.click_log import write_click_log
from tests.launch.values import cpu_pool, make_cluster, make_layout

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
    monkeypatch.setattr(cli, "app", lambda *_, **__: os.kill(os.getpid(), number))
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


def test_a_signal_after_the_work_does_not_disturb_the_end() -> None:
    """The real interpreter, whose own end takes a second where torch was loaded."""
    program = (
        "import atexit, os, signal; from heterps_hpc import cli; from heterps_hpc.launch import "
        "stop_requests as s; cli.app = lambda *_, **__: None; "
        "atexit.register(lambda: [os.kill(os.getpid(), n) for n in s.SIGNALS]); cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


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
    rank = run_lock.join(run)
    process = subprocess.Popen(
        [sys.executable, "-m", "heterps_hpc.cli", "plan", str(job), "--run-dir", str(run.path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up = time.monotonic() + 30
    while run_lock.holder(run) is None and time.monotonic() < give_up:
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


def test_a_job_that_cannot_continue_does_not_replace_the_one_that_can(
    job_file: Path, tmp_path: Path
) -> None:
    with freeze(job_file, tmp_path / "run") as (_, cluster, run):
        pass
    other = tmp_path / "other.yaml"
    other.write_text(job_file.read_text().replace("first", "other"))
    make_layout(cluster, ("cpu", 1)).save(run.layout)
    before = frozen_files(run)
    with pytest.raises(UserError, match="plan again"), freeze(other, run.path, resume=True):
        pass
    assert frozen_files(run) == before
    make_checkpoint(run.checkpoints, num_rows=1)
    for how in ("resume", "may_have_trained"):  # run --resume; measure and plan
        options = {how: True}
        with pytest.raises(UserError, match="another run"), freeze(other, run.path, **options):
            pass
    assert frozen_files(run) == before


def test_launch_refuses_before_ranks_start_what_they_would_refuse(
    job_file: Path, tmp_path: Path
) -> None:
    with freeze(job_file, tmp_path / "run") as (_, cluster, run):
        make_layout(cluster, ("cpu", 1)).save(run.layout)
    with pytest.raises(UserError, match="plan again"):
        launch(run.path, "local", resume=False, wait=True)
    (tmp_path / "click_log").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="click_log: no such dataset"):
        launch(run.path, "local", resume=False, wait=True)
    assert events.read(run).num_starts == 0


def test_what_a_launcher_refuses_was_not_launched(job_file: Path, tmp_path: Path) -> None:
    """Else the next `heterps run` would take another directory."""
    with freeze(job_file, tmp_path / "run") as (job, cluster, run):
        pass
    run.rank_log(1).mkdir()
    tables = TableOptions(num_partitions=8)
    job = job.model_copy(update={"train": job.train.model_copy(update={"tables": tables})})
    request = LaunchRequest(run, make_layout(cluster, ("cpu", 2)), job, cluster)
    with pytest.raises(UserError, match="is a directory"):
        start(LocalLauncher(), request)
    assert not events.read(run).was_launched


def test_test_data_that_is_not_there_is_refused_before_training(
    job_file: Path, tmp_path: Path
) -> None:
    job = Job.load(job_file)
    data = job.data.model_copy(update={"test": tmp_path / "nowhere"})
    with pytest.raises(UserError, match="nowhere: no such dataset"):
        ready_data(job.model_copy(update={"data": data}))


def test_tables_that_the_model_lacks_are_refused_before_training(job_file: Path) -> None:
    job = Job.load(job_file)
    tables = TableOptions(expected_rows={"nosuch": 5})
    train = job.train.model_copy(update={"tables": tables})
    with pytest.raises(UserError, match="expected_rows names nosuch"):
        ready_data(job.model_copy(update={"train": train}))


def test_a_label_that_the_data_lacks_is_refused_before_planning(job_file: Path) -> None:
    job = Job.load(job_file)
    job = job.model_copy(update={"data": job.data.model_copy(update={"label": "nothing"})})
    with pytest.raises(UserError, match=r"data\.label: no label 'nothing'"):
        model_of(job, Dataset.open(job.data.train))


def test_weights_that_are_not_there_are_refused_before_measuring(
    job_file: Path, tmp_path: Path
) -> None:
    job = Job.load(job_file)
    train = job.train.model_copy(update={"init_from": tmp_path})
    with pytest.raises(UserError, match="not a complete checkpoint"):
        run_job(job.model_copy(update={"train": train}), tmp_path / "run", "local")
    assert not (tmp_path / "run" / "measure").exists()


def test_a_report_that_the_disk_does_not_take_is_no_reason_to_train_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: RunDir) -> None:
        raise OSError(28, "No space left on device", str(run.report))

    monkeypatch.setitem(write_report.__globals__, "report", fail)
    message = r"trained to the end, but .*report.html is not written: No space .*`heterps report "
    with pytest.raises(UserError, match=message):
        write_report(RunDir(tmp_path))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "/r/x"), "/r/x: No space left on device; make"),
        (OSError(28, "No space left on device"), "the disk: No space left on device; make space"),
        (FileNotFoundError(2, "No such file or directory", "/r"), "/r: No such file or directory;"),
        (UserError("no column '\x1b[2J\0ü'"), r"no column '\x1b[2J\x00ü'"),
        (MemoryError(), "out of memory"),
        (RuntimeError("can't start new thread"), "no further thread can be started"),
    ],
)
def test_errors_of_the_system_are_one_line(
    error: Exception,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == ExitCode.USER_ERROR
    assert capsys.readouterr().err.startswith(f"heterps: {line}")
