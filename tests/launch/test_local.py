"""mpirun on this machine: the right world, the right exit code, and nobody left behind."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from heterps_hpc import events, run_lock, rundir
from heterps_hpc.config import WatchSpec
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch import local, stopped_ranks
from heterps_hpc.launch.failure import explain
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.local import LocalLauncher, check_cores, mpirun_command
from heterps_hpc.launch.mpi import Flavour, Mpi, find_mpi
from heterps_hpc.launch.process_tree import ProcessTree
from heterps_hpc.layout import Layout
from heterps_hpc.run_lock import RunLock
from heterps_hpc.rundir import RunDir
from tests.launch.values import BEHAVE, ROOT, make_cluster, make_job, make_layout

CLUSTER = make_cluster()
LAYOUT = make_layout(CLUSTER, ("cpu", 2), ("gpu", 1))
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


def start(tmp_path: Path, orders: dict[str, Any], saves: bool = True, **launch: Any) -> ExitCode:
    directory = RunDir(tmp_path / "a run").create()
    (directory.path / "behave.json").write_text(json.dumps(orders))
    request = LaunchRequest(directory, LAYOUT, make_job(**launch), CLUSTER, BEHAVE, saves)
    return LocalLauncher(environment=ENVIRONMENT).start(request)


def command_of(layout: Layout, flavour: Flavour, **launch: Any) -> list[str]:
    mpi = Mpi(flavour=flavour, mpirun=Path("/m/mpirun"), version="5")
    request = LaunchRequest(RunDir("/r"), layout, make_job(**launch), CLUSTER)
    return mpirun_command(request, mpi, python="py")


def rank_infos(tmp_path: Path) -> list[dict[str, Any]]:
    files = sorted((tmp_path / "a run").glob("rank-*.json"))
    return [json.loads(file.read_text()) for file in files]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_nobody_left(tmp_path: Path) -> None:
    """A killed process lets go of its files, and so of its lock, a moment before it has ended."""
    pids = [info["pid"] for info in rank_infos(tmp_path)]
    deadline = time.monotonic() + 5
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in pids if is_alive(pid)] == []


def test_command_of_mpich() -> None:
    assert " ".join(command_of(LAYOUT, "mpich", bind="core")) == (
        "/m/mpirun -launcher fork -bind-to core "
        "-n 2 /usr/bin/env OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "
        "py -P -m mpi4py -m heterps_hpc.runtime /r --component 0 : "
        "-n 1 /usr/bin/env OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "
        "py -P -m mpi4py -m heterps_hpc.runtime /r --component 1"
    )


def test_command_of_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_layout(CLUSTER, ("cpu", 4))
    monkeypatch.setattr(local.os, "geteuid", lambda: 0)
    command = " ".join(command_of(layout, "openmpi", oversubscribe=True))
    assert command.startswith(
        "/m/mpirun --allow-run-as-root --bind-to none --map-by slot:OVERSUBSCRIBE -n 4 /usr/bin/"
    )
    monkeypatch.setattr(local.os, "geteuid", lambda: 7)
    plain = command_of(layout, "openmpi", oversubscribe=False)
    assert plain[:4] == ["/m/mpirun", "--bind-to", "none", "-n"]


def test_more_ranks_than_cores_only_when_asked() -> None:
    layout = make_layout(CLUSTER, ("cpu", 4))
    with pytest.raises(UserError, match=r"4 ranks, this machine 2 cores; .*oversubscribe"):
        check_cores(layout, 2, oversubscribe=False)
    check_cores(layout, 2, oversubscribe=True)
    check_cores(layout, 4, oversubscribe=False)


def test_missing_mpirun_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no mpirun next to"):
        find_mpi(tmp_path / "python")


def test_one_world_with_components_and_threads(tmp_path: Path) -> None:
    assert start(tmp_path, {"default": 0}) == ExitCode.DONE
    assert [(f["rank"], f["size"], f["component"], f["threads"]) for f in rank_infos(tmp_path)] == [
        (0, 3, 0, "1"),
        (1, 3, 0, "1"),
        (2, 3, 1, "1"),
    ]
    lines = events.read_lines(RunDir(tmp_path / "a run"))
    assert [line["event"] for line in lines] == ["start", "ranks_done", "end"]
    assert lines[1]["num_ranks"] == 3
    assert lines[-1]["code"] == 0


@pytest.mark.parametrize(
    ("order", "code"),
    [(2, ExitCode.USER_ERROR), (5, ExitCode.STALLED), ("raise", ExitCode.RANK_FAILED)],
)
def test_codes_of_ranks_come_through(tmp_path: Path, order: object, code: ExitCode) -> None:
    assert start(tmp_path, {"default": order}) == code


def test_all_ranks_die_with_one(tmp_path: Path) -> None:
    begin = time.monotonic()
    assert start(tmp_path, {"1": "die", "default": "wait"}) == ExitCode.RANK_FAILED
    assert time.monotonic() - begin < 20
    assert_nobody_left(tmp_path)


def test_starts_are_counted_since_the_user_asked(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "a run").create()
    for restart in (0, 1):
        if restart == 0:
            events.record(directory, events.Started())  # of an earlier launch
            events.record(directory, events.Launched())
        assert start(tmp_path, {"default": 4}) == ExitCode.RANK_FAILED
        end = events.read(directory).last(events.Ended)
        assert end is not None
        assert end.restart == restart


def test_time_limit_asks_first(tmp_path: Path) -> None:
    code = start(tmp_path, {"default": "wait"}, time_limit_minutes=0.1)
    assert code == ExitCode.STOPPED
    assert_nobody_left(tmp_path)


STARTER = """
import logging, sys
from heterps_hpc.errors import UserError
from heterps_hpc.run_lock import RunLock
from heterps_hpc.rundir import RunDir
from tests.launch.test_local import start
from pathlib import Path
try:
    with RunLock(RunDir(Path(sys.argv[1]) / "a run").create()):
        sys.exit(start(Path(sys.argv[1]), {"default": sys.argv[2]}, bool(int(sys.argv[3]))))
except UserError as error:
    sys.exit(f"UserError: {error}")
"""


def background(tmp_path: Path, order: str = "wait", *, saves: bool = True) -> subprocess.Popen[str]:
    """A launcher in a process of its own, with all its ranks running."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path), order, str(int(saves))],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up = time.monotonic() + 30
    while len(rank_infos(tmp_path)) < LAYOUT.num_ranks:
        assert time.monotonic() < give_up, "the ranks did not start"
        time.sleep(0.1)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    process = background(tmp_path)
    process.send_signal(number)
    assert process.wait(20) == ExitCode.STOPPED
    assert_nobody_left(tmp_path)
    stop = events.read(RunDir(tmp_path / "a run")).last(events.StopWanted)
    assert stop is not None
    assert stop.why == number.name


def test_a_signal_ends_ranks_at_once_that_have_nothing_to_save(tmp_path: Path) -> None:
    process = background(tmp_path, "ignore", saves=False)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == ExitCode.STOPPED
    assert_nobody_left(tmp_path)


def test_ranks_that_must_be_ended_have_failed(tmp_path: Path) -> None:
    """mpirun, ended by us, gives 0: that must never count as done."""
    process = background(tmp_path, "ignore")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == ExitCode.RANK_FAILED
    assert_nobody_left(tmp_path)
    end = events.read(RunDir(tmp_path / "a run")).last(events.Ended)
    assert end is not None
    assert end.code == ExitCode.RANK_FAILED


@pytest.mark.parametrize(
    ("order", "save", "code"), [("wait", True, ExitCode.STOPPED), ("ignore", False, 4)]
)
def test_local_runs_are_cancelled(tmp_path: Path, order: str, save: bool, code: int) -> None:
    run = RunDir(tmp_path / "a run")
    with pytest.raises(UserError, match="nothing is running here"):
        LocalLauncher().cancel(run, save=save)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as by `heterps … &` in a script
    try:
        process = background(tmp_path, order)
    finally:
        signal.signal(signal.SIGINT, before)
    assert f"process {process.pid}: " in LocalLauncher().cancel(run, save=save)
    assert process.wait(20) == code
    assert_nobody_left(tmp_path)


def test_stopped_ranks_do_not_outlast_the_time_limit(tmp_path: Path) -> None:
    assert start(tmp_path, {"default": "ignore"}, time_limit_minutes=0.1) == ExitCode.RANK_FAILED
    assert_nobody_left(tmp_path)


def test_a_stopped_mpirun_does_not_outlast_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LOOK_SECONDS", 0.3)

    def stop_mpirun() -> None:
        while len(rank_infos(tmp_path)) < LAYOUT.num_ranks:
            time.sleep(0.05)
        time.sleep(0.5)  # the ranks are seen
        (mpirun,) = (p for p in psutil.Process().children() if "mpirun" in " ".join(p.cmdline()))
        mpirun.suspend()
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_mpirun, daemon=True)
    thread.start()
    began = time.monotonic()
    assert start(tmp_path, {"default": "wait"}) == ExitCode.STOPPED
    assert time.monotonic() - began < 30
    thread.join()
    assert_nobody_left(tmp_path)


@pytest.mark.parametrize("on_stall", ["stop", "report"])
def test_stopped_ranks_are_noticed_before_they_can_watch_each_other(
    on_stall: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(stopped_ranks, "_SECONDS_FOR_RANKS", 0.3)
    watch = {"stall_seconds": 0.2, "on_stall": on_stall}
    job = make_job().model_copy(update={"watch": WatchSpec.parse(watch, "test")})
    directory = RunDir(tmp_path / "a run").create()
    (directory.path / "behave.json").write_text('{"default": "wait"}')
    request = LaunchRequest(directory, LAYOUT, job, CLUSTER, BEHAVE)

    def stop_a_rank() -> None:
        """As soon as it is there; let it go again if it may stay."""
        while not (found := [p for p in psutil.Process().children(recursive=True) if is_rank(p)]):
            time.sleep(0.01)
        found[0].suspend()
        if on_stall == "report":
            while "has been stopped" not in caplog.text:
                time.sleep(0.05)
            found[0].resume()
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_a_rank, daemon=True)
    thread.start()
    code = LocalLauncher(environment=ENVIRONMENT).start(request)
    thread.join()
    assert code == (ExitCode.STALLED if on_stall == "stop" else ExitCode.STOPPED)
    if on_stall == "stop":
        first, *_ = (explain(directory, code) or "").splitlines()
        assert first.startswith("nothing moved any more: rank ")
        assert " has been stopped for " in first
    assert_nobody_left(tmp_path)


def is_rank(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "PMI_RANK" in process.environ() and "python" in process.name()
    return False


@pytest.mark.parametrize("stopped", [False, True])
def test_killed_launcher_leaves_nobody(tmp_path: Path, stopped: bool) -> None:
    """Its ranks end with it, stopped ones too, and until they have nobody gets the directory."""
    process = background(tmp_path, "ignore")
    if stopped:
        for info in rank_infos(tmp_path):
            os.kill(info["pid"], signal.SIGSTOP)
    run = RunDir(tmp_path / "a run")
    assert run_lock.has_ranks(run)
    process.kill()
    process.wait()
    with RunLock(run):  # waits for the ranks
        assert not run_lock.has_ranks(run)
        assert_nobody_left(tmp_path)


def test_ranks_hold_the_directory_without_their_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path).create()
    rank = run_lock.join(run)
    assert rank is not None
    monkeypatch.setattr(run_lock, "_SECONDS_FOR_OLD_RANKS", 0.2)
    with pytest.raises(UserError, match="ranks of an earlier start"), RunLock(run):
        pass
    rank.close()
    with RunLock(run):
        pass


@pytest.mark.parametrize("made_anew", [False, True])
def test_deleted_run_directory_is_one_line(made_anew: bool, tmp_path: Path) -> None:
    """Ranks that write before the launcher looks make another one under its name."""
    process = background(tmp_path)
    pids = [info["pid"] for info in rank_infos(tmp_path)]
    (tmp_path / "a run").rename(tmp_path / "old")
    if made_anew:
        (tmp_path / "a run").mkdir()
    shutil.rmtree(tmp_path / "old")
    _, errors = process.communicate(timeout=20)
    assert "the run directory was deleted or moved while the run used it" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_ranks_start_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even `env` is found there."""
    monkeypatch.setitem(ENVIRONMENT, "PATH", "/nonexistent")
    assert start(tmp_path, {"default": 0}) == ExitCode.DONE


def test_a_file_of_the_user_is_not_taken_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("random", "profile", "mpi4py"):
        Path(f"{name}.py").write_text("raise SystemExit(9)")
    assert start(tmp_path, {"default": 0}) == ExitCode.DONE


def test_another_users_run_is_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    run = RunDir(tmp_path).create()
    monkeypatch.setattr(os, "kill", kill)
    with RunLock(run), pytest.raises(UserError, match="another user's; ask its owner"):
        LocalLauncher().cancel(run, save=True)


@pytest.mark.parametrize("log", ["/dev/full", "/nowhere/launcher.log"])
def test_output_is_taken_though_the_disk_takes_no_log(log: str) -> None:
    lines: list[str] = []
    tree = ProcessTree(["seq", "20000"], os.environ, Path(log), lines.append)
    assert tree.wait(20) == 0
    tree.end()
    assert lines[-1] == "20000"  # more than a pipe holds


def test_output_is_taken_though_nobody_can_be_shown_it(tmp_path: Path) -> None:
    def show(line: str) -> None:
        raise BrokenPipeError

    tree = ProcessTree(["seq", "20000"], os.environ, tmp_path / "log", show)
    status = tree.wait(5)
    tree.end()
    assert status == 0
    assert (tmp_path / "log").read_text().splitlines()[-1] == "20000"


def test_full_shared_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "free_shared_memory", lambda: 100)
    with pytest.raises(UserError, match=r"/dev/shm is full \(100 bytes free\)"):
        start(tmp_path, {"default": 0})
    run = RunDir(tmp_path / "late").create()
    events.record(run, events.Started())
    run.launcher_log.write_text("=   PID 4711 RUNNING AT n1\n=   EXIT CODE: 7\n")
    first, second, *_ = (explain(run, ExitCode.RANK_FAILED) or "").splitlines()
    assert first == "no rank reported why it ended"  # there is nothing but banners about it
    assert second.startswith("a bus error: /dev/shm was full")
    run.launcher_log.write_text("=   PID 4711 RUNNING AT n1\n=   EXIT CODE: 9\n")
    assert "/dev/shm" not in (explain(run, ExitCode.RANK_FAILED) or "")


def test_a_rank_killed_for_want_of_memory_is_explained(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    events.record(run, events.Started())
    run.launcher_log.write_text("=   PID 4711 RUNNING AT n1\n=   EXIT CODE: 9\n")
    reason = explain(run, ExitCode.RANK_FAILED) or ""
    assert "signal 9: if nobody sent it, the kernel did, for want of memory" in reason
    assert "`hot_bytes` with `spill_dir`" in reason
    events.record(run, events.StopWanted())
    assert "want of memory" not in (explain(run, ExitCode.RANK_FAILED) or "")
    events.record(run, events.Started())
    run.launcher_log.write_text("")
    events.record(run, events.Ended(code=4, status=-9))  # of mpirun itself
    assert "want of memory" in (explain(run, ExitCode.RANK_FAILED) or "")


def test_an_illegal_instruction_is_explained(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    events.record(run, events.Started())
    dead = "=   PID 4711 RUNNING AT n1\n=   EXIT CODE: 4\n"
    text = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Illegal instruction (signal 4)\n"
    run.launcher_log.write_text(dead + text)
    assert "ONEDNN_MAX_CPU_ISA" in (explain(run, ExitCode.RANK_FAILED) or "")
    run.launcher_log.write_text(dead)  # a rank's own code
    assert "ONEDNN_MAX_CPU_ISA" not in (explain(run, ExitCode.RANK_FAILED) or "")


@pytest.mark.parametrize(
    "name",
    [
        "history.jsonl",
        "metrics.jsonl",
        "summary.json",
        ".lock",
        "logs/launcher.log",
        "logs/rank-00002.log",
        "heartbeats/n1-00000.json",
        "checkpoints/000000005/manifest.json",
    ],
)
def test_a_folder_in_the_way_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    (RunDir(tmp_path / "a run").create().path / name).mkdir(parents=True)
    with pytest.raises(UserError, match=f"{name.split('/')[-1]}: is a directory, expected a file"):
        start(tmp_path, {"default": 0})


@pytest.mark.parametrize("name", ["logs", "checkpoints", "heartbeats"])
def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path, name: str) -> None:
    run = RunDir(tmp_path).create()
    (run.path / name).rmdir()
    (run.path / name).write_text("")
    with pytest.raises(UserError, match=f"{name}: is a file, expected a directory"):
        run.check_usable()


def test_a_pipe_in_the_way_of_a_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(RunDir(tmp_path / "a run").create().history)
    with pytest.raises(UserError, match=r"history.jsonl: is a pipe or a device, expected a file"):
        start(tmp_path, {"default": 0})


def test_a_full_disk_is_named_before_ranks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rundir.os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot be written: No space left on device; make space"):
        start(tmp_path, {"default": 0})
    assert [path.name for path in (tmp_path / "a run").glob(".probe*")] == []
