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

from heterps_hpc import history
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.local import check_cores, mpirun_command, run
from heterps_hpc.launch.mpi import Mpi, find_mpi
from heterps_hpc.rundir import RunDir
from tests.launch.values import BEHAVE, ROOT, make_cluster, make_job, make_layout

CLUSTER = make_cluster()
LAYOUT = make_layout(CLUSTER, ("cpu", 2), ("gpu", 1))
ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


def start(tmp_path: Path, orders: dict[str, Any], **launch: Any) -> ExitCode:
    directory = RunDir(tmp_path / "a run").create()
    (directory.path / "behave.json").write_text(json.dumps(orders))
    return run(
        directory.path,
        LAYOUT,
        make_job(**launch),
        program=BEHAVE,
        environment=ENVIRONMENT,
    )


def facts(tmp_path: Path) -> list[dict[str, Any]]:
    files = sorted((tmp_path / "a run").glob("rank-*.json"))
    return [json.loads(file.read_text()) for file in files]


def assert_nobody_left(tmp_path: Path) -> None:
    left = [fact["pid"] for fact in facts(tmp_path) if psutil.pid_exists(fact["pid"])]
    assert [pid for pid in left if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE] == []


def test_command_of_mpich() -> None:
    mpi = Mpi(flavour="mpich", mpirun=Path("/m/mpirun"), version="5")
    command = " ".join(mpirun_command(LAYOUT, Path("/r"), mpi, python="py", bind="core"))
    assert command == (
        "/m/mpirun -launcher fork -bind-to core "
        "-n 2 env OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "
        "py -m mpi4py -m heterps_hpc.runtime /r --component 0 : "
        "-n 1 env OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 "
        "py -m mpi4py -m heterps_hpc.runtime /r --component 1"
    )


def test_command_of_open_mpi() -> None:
    mpi = Mpi(flavour="openmpi", mpirun=Path("/m/mpirun"), version="5")
    layout = make_layout(CLUSTER, ("cpu", 4))
    command = " ".join(
        mpirun_command(layout, Path("/r"), mpi, python="py", oversubscribe=True, as_root=True)
    )
    assert command.startswith(
        "/m/mpirun --allow-run-as-root --bind-to none --map-by slot:OVERSUBSCRIBE -n 4 env "
    )
    plain = mpirun_command(layout, Path("/r"), mpi, python="py")
    assert plain[:4] == ["/m/mpirun", "--bind-to", "none", "-n"]


def test_more_ranks_than_cores_only_when_asked() -> None:
    layout = make_layout(CLUSTER, ("cpu", 4))
    with pytest.raises(UserError, match=r"4 ranks, this machine 2 cores; .*oversubscribe"):
        check_cores(layout, 2, oversubscribe=False)
    check_cores(layout, 2, oversubscribe=True)
    check_cores(layout, 4, oversubscribe=False)


def test_no_mpirun_is_said_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    events = history.read(RunDir(tmp_path / "a run"))
    assert [event["event"] for event in events] == ["start", "end"]
    assert events[-1]["code"] == 0


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
            history.record(directory, "start")  # of an earlier launch
            history.record(directory, "launch")
        assert start(tmp_path, {"default": 4}) == ExitCode.RANK_FAILED
        assert history.read(directory)[-1]["restart"] == restart


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
