"""mpirun on this machine: the right world, the right exit code, and nobody left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from heterps_hpc import events
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch import local
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.local import LocalLauncher, check_cores, mpirun_command
from heterps_hpc.launch.mpi import Flavour, Mpi, find_mpi
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from tests.launch.values import BEHAVE, ROOT, make_cluster, make_job, make_layout

CLUSTER = make_cluster()
LAYOUT = make_layout(CLUSTER, ("cpu", 2), ("gpu", 1))
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


def start(tmp_path: Path, orders: dict[str, Any], **launch: Any) -> ExitCode:
    directory = RunDir(tmp_path / "a run").create()
    (directory.path / "behave.json").write_text(json.dumps(orders))
    request = LaunchRequest(directory, LAYOUT, make_job(**launch), CLUSTER, BEHAVE)
    return LocalLauncher(environment=ENVIRONMENT).start(request)


def command_of(layout: Layout, flavour: Flavour, **launch: Any) -> list[str]:
    mpi = Mpi(flavour=flavour, mpirun=Path("/m/mpirun"), version="5")
    request = LaunchRequest(RunDir("/r"), layout, make_job(**launch), CLUSTER)
    return mpirun_command(request, mpi, python="py")


def facts(tmp_path: Path) -> list[dict[str, Any]]:
    files = sorted((tmp_path / "a run").glob("rank-*.json"))
    return [json.loads(file.read_text()) for file in files]


def assert_nobody_left(tmp_path: Path) -> None:
    left = [fact["pid"] for fact in facts(tmp_path) if psutil.pid_exists(fact["pid"])]
    assert [pid for pid in left if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE] == []


def test_command_of_mpich() -> None:
    assert " ".join(command_of(LAYOUT, "mpich", bind="core")) == (
        "/m/mpirun -launcher fork -bind-to core "
        "-n 2 py -m mpi4py -m heterps_hpc.runtime /r --component 0 --threads 1 : "
        "-n 1 py -m mpi4py -m heterps_hpc.runtime /r --component 1 --threads 1"
    )


def test_command_of_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_layout(CLUSTER, ("cpu", 4))
    monkeypatch.setattr(local.os, "geteuid", lambda: 0)
    command = " ".join(command_of(layout, "openmpi", oversubscribe=True))
    assert command.startswith(
        "/m/mpirun --allow-run-as-root --bind-to none --map-by slot:OVERSUBSCRIBE -n 4 py "
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
    with pytest.raises(UserError, match="no mpirun beside"):
        find_mpi(tmp_path / "python")


def test_one_world_with_components_and_threads(tmp_path: Path) -> None:
    assert start(tmp_path, {"default": 0}) == ExitCode.DONE
    assert [(f["rank"], f["size"], f["component"], f["threads"]) for f in facts(tmp_path)] == [
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
from tests.launch.test_local import start
from pathlib import Path
sys.exit(start(Path(sys.argv[1]), {"default": "wait"}))
"""


def background(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A launcher in a process of its own, with all its ranks running."""
    process = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], cwd=ROOT)
    give_up = time.monotonic() + 30
    while len(facts(tmp_path)) < LAYOUT.num_ranks:
        assert time.monotonic() < give_up, "the ranks did not start"
        time.sleep(0.1)
    return process


def test_interrupt_saves_and_stops(tmp_path: Path) -> None:
    process = background(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == ExitCode.STOPPED
    assert_nobody_left(tmp_path)


def test_killed_launcher_leaves_nobody(tmp_path: Path) -> None:
    process = background(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    give_up = time.monotonic() + 15
    while True:
        try:
            return assert_nobody_left(tmp_path)
        except AssertionError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)
