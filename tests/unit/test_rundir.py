"""Run directories: one run at a time, whole files, clear refusals."""

import errno
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from heterps_hpc import run_lock
from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.errors import UserError
from heterps_hpc.events import Launched, record
from heterps_hpc.run_lock import RunLock
from heterps_hpc.rundir import RunDir


def test_a_second_run_is_refused_while_the_first_holds_the_directory(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run").create()
    with RunLock(directory), pytest.raises(UserError, match="another run"), RunLock(directory):
        pass
    with RunLock(directory):
        pass


def test_a_run_that_waits_for_old_ranks_is_named_and_not_the_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDir(tmp_path / "run").create()
    (directory.path / ".lock").write_text("1 on here\n")  # what a killed run leaves behind
    seen: list[str | None] = []
    monkeypatch.setattr(run_lock, "_SECONDS_FOR_OLD_RANKS", 0.0)
    monkeypatch.setattr(run_lock, "has_ranks", lambda run: not seen.append(run_lock.holder(run)))
    with pytest.raises(UserError, match="earlier start"), RunLock(directory):
        pass
    assert seen == [f"{os.getpid()} on {os.uname().nodename}"]
    assert run_lock.holder(directory) is None


def test_what_a_killed_writer_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run").create()
    left = [
        directory.path / ".job.json.0123456789ab",
        directory.heartbeats / ".n.json.ba9876543210",
    ]
    others = [directory.path / ".hidden", directory.path / ".job.json.fedcba987654"]
    for path in (*left, *others):
        path.touch()
    for path in (*left, others[0]):
        os.utime(path, (1e9, 1e9))
    with RunLock(directory):
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in others)  # no name of ours, or just being written


def test_a_look_at_the_lock_refuses_nobody(tmp_path: Path) -> None:
    """`heterps status` locks it for a moment, to see whether somebody else has."""
    directory = RunDir(tmp_path / "run").create()
    with directory.lock.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(0.2, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        with RunLock(directory):
            assert run_lock.holder(directory) is not None


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    directory = RunDir(tmp_path / "run").create()
    with RunLock(directory):
        assert not run_lock.has_ranks(directory)
        rank = run_lock.join(directory)
        assert rank is not None
        rank.close()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="--run-dir"):
        RunDir(tmp_path / "run").create()
    (tmp_path / "logs").write_text("")
    with pytest.raises(UserError, match=f"{tmp_path}/logs: File exists"):
        RunDir(tmp_path).create()


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to("run")
    assert not RunDir(tmp_path / "run").job.exists()
    with pytest.raises(UserError, match="--run-dir"):
        RunDir(tmp_path / "run").create()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_errors_of_writing_have_the_name_that_the_user_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    run = RunDir(tmp_path).create()
    monkeypatch.setattr(os, "write", fail)
    monkeypatch.setattr(os, "fsync", fail)
    for write in (lambda: record(run, Launched()), lambda: write_atomically(run.history, "{}")):
        with pytest.raises(OSError, match="Input/output error") as caught:
            write()
        assert caught.value.filename == str(run.history)


def test_the_umask_of_other_threads_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that another thread makes at that moment would have the wrong mode."""

    def refuse(_: int) -> int:
        raise AssertionError("the umask belongs to the whole process")

    monkeypatch.setattr(os, "umask", refuse)
    write_atomically(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


def test_a_long_name_is_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("n" * 240), "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["n" * 240]


def test_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
