"""Run directories: one run at a time, whole files, clear refusals."""

import errno
import os
import stat
from pathlib import Path

import pytest

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.errors import UserError
from heterps_hpc.events import Launched, record
from heterps_hpc.rundir import RunDir


def test_a_second_run_is_refused_while_the_first_holds_the_directory(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run").create()
    with directory.hold(), pytest.raises(UserError, match="another run"), directory.hold():
        pass
    with directory.hold():
        pass


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="--run-dir"):
        RunDir(tmp_path / "run").create()


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
