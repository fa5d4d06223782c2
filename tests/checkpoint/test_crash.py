"""Killed at any moment of a save, or out of space: the earlier checkpoint is as good as before.

The save runs in a forked child that kills itself before its n-th call to the file system, for one
n after the other; so every kind of state that a crash can leave behind is looked at.
"""

from __future__ import annotations

import errno
import os
import pathlib
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

from heterps_hpc.checkpoint import newest
from heterps_hpc.checkpoint.store import keep_last, steps_of
from heterps_hpc.checkpoint.verify import verify
from tests.checkpoint.made import make_checkpoint

# every call of a save that changes what is on the disk
CALLS: list[tuple[Any, str]] = [
    (os, "pwrite"),
    (os, "fsync"),
    (os, "fdopen"),
    (pathlib.Path, "replace"),
    (pathlib.Path, "unlink"),
    (pathlib.Path, "mkdir"),
    (h5py, "File"),
]
NEEDS_SPACE = ("pwrite", "fsync", "fdopen", "File")
Hook = Callable[[str, int], None]


def count_calls(before: Hook) -> Iterator[None]:
    """Call `before` with the name and number of every call."""
    number = 0

    def wrapped(original: Any, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal number
            number += 1
            before(name, number)
            return original(*args, **kwargs)

        return call

    originals = [(owner, name, getattr(owner, name)) for owner, name in CALLS]
    for owner, name, original in originals:
        setattr(owner, name, wrapped(original, name))
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """Hundreds of saves, each with many fsyncs: a real disk would add nothing but minutes."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared, prefix="heterps-test-") as path:
        yield Path(path)


def save_and_sweep(checkpoints: Path, step: int, seed: int) -> None:
    make_checkpoint(checkpoints, step, seed=seed, num_rows=20, token=f"{seed:08x}")
    keep_last(checkpoints, 1)


def in_child(checkpoints: Path, step: int, hook: Hook) -> int:
    """Save in a forked child with a hook before every call; returns its wait status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for _ in count_calls(hook):
                save_and_sweep(checkpoints, step, seed=2)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def calls_of_a_save(path: Path) -> list[str]:
    """The names of all calls of a save, in order."""
    calls: list[str] = []
    for _ in count_calls(lambda name, number: calls.append(name)):
        save_and_sweep(path, 5, seed=2)
    assert {name for _, name in CALLS} <= set(calls)
    return calls


def moments(calls: list[str]) -> list[int]:
    """The numbers of all calls; of the many writes in a row, every tenth."""
    return [n for n, name in enumerate(calls, 1) if name != "pwrite" or n % 10 == 0]


@pytest.mark.parametrize("step", [6, 5], ids=["a later step", "the same step again"])
def test_a_kill_at_any_moment_leaves_a_good_checkpoint(in_memory: Path, step: int) -> None:
    seen = set()
    for fatal in moments(calls_of_a_save(in_memory / "count")):
        checkpoints = in_memory / f"{fatal}"
        make_checkpoint(checkpoints, 5, seed=1, num_rows=20, token="00000001")

        def kill(name: str, number: int, fatal: int = fatal) -> None:
            if number == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        status = in_child(checkpoints, step, kill)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        found = newest(checkpoints)
        assert found is not None
        assert verify(found).problems == []
        seen.add(found.manifest.shards[0].file)
        save_and_sweep(checkpoints, step + 1, seed=3)  # and the next save finds its way
        assert steps_of(checkpoints) == [step + 1]
        assert [folder.name for folder in checkpoints.iterdir()] == [f"{step + 1:09d}"]
    assert len(seen) == 2  # killed before and after the manifest


def test_a_full_disk_at_any_moment_leaves_a_good_checkpoint(in_memory: Path) -> None:
    calls = calls_of_a_save(in_memory / "count")
    num_failed = 0
    for fatal in moments(calls):
        checkpoints, filled = in_memory / f"{fatal}", in_memory / f"{fatal} was full"
        make_checkpoint(checkpoints, 5, seed=1, num_rows=20)

        def fill(name: str, number: int, fatal: int = fatal, filled: Path = filled) -> None:
            if number >= fatal and name in NEEDS_SPACE:
                filled.touch()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        status = in_child(checkpoints, 6, fill)
        assert os.WIFEXITED(status)
        assert filled.exists() == any(name in NEEDS_SPACE for name in calls[fatal - 1 :])
        num_failed += os.WEXITSTATUS(status) != 0
        found = newest(checkpoints)
        assert found is not None
        assert verify(found).problems == []
        assert found.step == (5 if os.WEXITSTATUS(status) else 6)
    assert num_failed > len(moments(calls)) // 2  # all but those after the manifest


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    try:
        make_checkpoint(tmp_path, 5, seed=1)
        with pytest.raises(OSError, match=r"No space left|[Uu]nable to"):
            make_checkpoint(tmp_path, 6, seed=2, num_rows=20_000)
        found = newest(tmp_path)
        assert found is not None
        assert found.step == 5
        assert verify(found).problems == []
        make_checkpoint(tmp_path, 7, seed=1)  # there is space again for a small one
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
