"""Disks, kills and broken files: nothing half-written ever looks whole."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_prep.criteo import CriteoSource
from data_prep.options import PrepareOptions
from data_prep.prepare import prepare
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from tests.data.samples import write_criteo


def run(source: Path, out: Path, segment_mb: float = 0.05) -> str:
    made = prepare(CriteoSource([source]), PrepareOptions(out, segment_mb=segment_mb))
    return made["train"].fingerprint()


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(UserError, match="a: the file is empty"):
        run(tmp_path / "a", tmp_path / "out")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        run(tmp_path / "a", tmp_path / "out")


def test_only_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\n\n")
    with pytest.raises(UserError, match="no valid row"):
        run(tmp_path / "a", tmp_path / "out")


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_gz(tmp_path: Path, damage: str) -> None:
    write_criteo(tmp_path / "a", 2000)
    packed = bytearray(gzip.compress((tmp_path / "a").read_bytes()))
    if damage == "cut":
        del packed[-1000:]
    else:
        packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "a.gz").write_bytes(packed)
    with pytest.raises(UserError, match=r"a\.gz.*(cut off or damaged|expected)"):
        run(tmp_path / "a.gz", tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_output_that_cannot_be_made(tmp_path: Path) -> None:
    write_criteo(tmp_path / "a", 10)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write it"):
        run(tmp_path / "a", tmp_path / "file" / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_without_permission(tmp_path: Path) -> None:
    write_criteo(tmp_path / "a", 10)
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(UserError, match="no permission"):
        run(tmp_path / "a", tmp_path / "closed" / "out")


def test_permission_error_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_criteo(tmp_path / "a", 10)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    source = CriteoSource([tmp_path / "a"])
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="no permission to write there"):
        prepare(source, PrepareOptions(tmp_path / "out"))


PREPARE = """
import resource, signal, sys
from pathlib import Path
from data_prep.criteo import main
if sys.argv[3] != "0":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
sys.exit(main([sys.argv[1], "--out", sys.argv[2], "--segment-mb", "0.25", "--processes",
               sys.argv[4], "--no-progress"]))
"""


def command(source: Path, out: Path, file_limit: int = 0, processes: int = 1) -> list[str]:
    return [sys.executable, "-c", PREPARE, str(source), str(out), str(file_limit), str(processes)]


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    # a limit on the size of files fails HDF5's writes for real, as a full disk does
    write_criteo(tmp_path / "a", 3000)
    failed = subprocess.run(
        command(tmp_path / "a", tmp_path / "out", file_limit=150_000),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert failed.returncode == 2, failed.stderr
    assert "shard-00000-000000.h5" in failed.stderr
    assert "the disk is full" in failed.stderr
    assert not list((tmp_path / "out").glob("shard-*"))
    again = subprocess.run(
        command(tmp_path / "a", tmp_path / "out"), timeout=60, check=False, capture_output=True
    )
    assert again.returncode == 0
    assert Dataset.open(tmp_path / "out", "checksums").manifest.num_rows == 3000


@pytest.mark.parametrize("compressed", [False, True])
def test_a_killed_run_continues(tmp_path: Path, compressed: bool) -> None:
    write_criteo(tmp_path / "a", 12_000)
    source = tmp_path / "a"
    if compressed:
        source = tmp_path / "a.gz"
        source.write_bytes(gzip.compress((tmp_path / "a").read_bytes(), 1))
    run(source, tmp_path / "whole", segment_mb=0.25)
    out = tmp_path / "out"
    started = subprocess.Popen(command(source, out), start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(out.glob("shard-*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(started.pid, signal.SIGKILL)
    started.wait(20)
    finished = {path: path.stat().st_mtime_ns for path in out.glob(".work/*.json")}
    assert len(finished) >= 2
    with pytest.raises(UserError, match="did not finish"):
        Dataset.open(out)
    subprocess.run(command(source, out), check=True, timeout=60, capture_output=True)
    whole, resumed = (Dataset.open(tmp_path / name, "checksums") for name in ("whole", "out"))
    assert whole.manifest.fingerprint() == resumed.manifest.fingerprint()
    first = sorted(out.glob("shard-*"))[0]
    plan_first = min(finished)
    assert first.stat().st_mtime_ns <= finished[plan_first] + 10**9  # not written again
    assert not list(out.rglob("*.partial"))


def test_workers_take_no_file_of_the_user_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_criteo(tmp_path / "a", 300)
    monkeypatch.chdir(tmp_path)
    for name in ("pickle", "copy", "tempfile"):
        Path(f"{name}.py").write_text("raise SystemExit(9)")
    prepare(CriteoSource([Path("a")]), PrepareOptions(Path("out"), segment_mb=0.02, processes=2))
    assert "PYTHONSAFEPATH" not in os.environ
    assert Dataset.open(Path("out")).manifest.num_rows == 300


def test_other_options_do_not_continue_it(tmp_path: Path) -> None:
    write_criteo(tmp_path / "a", 100)
    good = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(good + b"bad\n")
    source = CriteoSource([tmp_path / "a"])
    with pytest.raises(UserError, match="line 101"):
        prepare(source, PrepareOptions(tmp_path / "out", segment_mb=0.005))
    (tmp_path / "out" / ".work" / "failed").unlink()  # as if it had been killed, not failed
    with pytest.raises(UserError, match="holds an unfinished preparation"):
        prepare(source, PrepareOptions(tmp_path / "out", max_keys=10))


MEASURE = """
import resource, sys
from pathlib import Path
from data_prep.criteo import CriteoSource
from data_prep.options import PrepareOptions
from data_prep.prepare import prepare
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
small, large, out = map(Path, sys.argv[1:])
prepare(CriteoSource([small]), PrepareOptions(out / "small", block_rows=512, segment_mb=8))
before = peak()
prepare(CriteoSource([large]), PrepareOptions(out / "large", block_rows=512, segment_mb=8))
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    lines = write_criteo(tmp_path / "small", 20_000)
    with (tmp_path / "large").open("wb") as file:
        for _ in range(26):
            file.writelines(lines)
    grown = subprocess.run(
        [sys.executable, "-c", MEASURE]
        + [str(path) for path in (tmp_path / "small", tmp_path / "large", tmp_path / "out")],
        check=True,
        capture_output=True,
        text=True,
        timeout=110,
    )
    size = (tmp_path / "large").stat().st_size
    key_samples = 26 * 2 * 65_536 * 16  # they fill up once, and never grow beyond that
    assert size > 2 * key_samples
    assert int(grown.stdout) < key_samples + 10_000_000


FULL_AT_THE_END = """
import resource, sys
from pathlib import Path
from data_prep.synthetic import SyntheticSlot, write_synthetic
from heterps_hpc.errors import UserError
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, -1))
try:
    write_synthetic(Path(sys.argv[1]), 5000, [SyntheticSlot("a")], 2)
except UserError as error:
    print(error)
"""


def test_a_process_outlives_a_disk_that_is_full_at_the_end(tmp_path: Path) -> None:
    """An HDF5 file that is left open is written to when Python has ended: a segmentation fault."""
    command = [sys.executable, "-c", FULL_AT_THE_END, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "the disk is full" in done.stdout
    assert list((tmp_path / "data").iterdir()) == []
