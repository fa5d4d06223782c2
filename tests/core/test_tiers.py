"""Tiers: the same bits with rows on disk as without, and clear errors when the disk fails."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heterps_hpc.core import Table, TableConfig
from tests.core.workload import contents, table_contents, train

BASE = TableConfig(dim=16, counters=True, num_partitions=8, evict_every=4, max_age=20)


def tiered(path: Path, hot_rows: int, base: TableConfig = BASE) -> Table:
    return Table(replace(base, hot_bytes=hot_rows * 104, spill_path=path))


@pytest.mark.parametrize("hot_rows", [1, 100, 2000])
def test_same_bits_as_without_tiers(tmp_path: Path, hot_rows: int) -> None:
    plain, tiers = Table(BASE), tiered(tmp_path / "spill", hot_rows)
    expected = train([plain], 60, num_distinct=5000)
    got = train([tiers], 60, num_distinct=5000)
    for a, b in zip(expected, got, strict=True):
        assert a.tobytes() == b.tobytes()
    stats = tiers.stats()
    assert stats["cold"] > 0
    assert stats["promoted"] > 1000  # so the file was compacted, too
    assert stats["evicted"] == plain.stats()["evicted"] > 0
    assert stats["rows"] == len(plain)
    assert table_contents(tiers) == table_contents(plain)


def spill_file(path: Path) -> Path:
    """The file of a table of that path, which has no name of its own."""
    files = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return next(file for file in files if str(file.readlink()).startswith(f"{path}."))


def test_hot_rows_stay_within_the_budget(tmp_path: Path) -> None:
    table = tiered(tmp_path / "spill", 800)
    train([table], 30, num_distinct=5000)
    table.pull(np.zeros(1, np.uint64), out=np.empty((1, 16), np.float32))
    assert table.stats()["hot"] <= 800 + 512 * 5  # the budget, and one batch that was pinned


def test_file_does_not_grow_forever(tmp_path: Path) -> None:
    table = tiered(tmp_path / "spill", 200)
    train([table], 40, num_distinct=3000)
    early = spill_file(tmp_path / "spill").stat().st_size
    train_more = 40
    rng = np.random.default_rng(1)
    for step in range(40, 40 + train_more):
        keys = rng.integers(0, 3000, 1000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        handle = table.pull(keys, out=np.empty((1000, 16), np.float32))
        assert handle is not None
        table.push([handle], [np.ones((1000, 16), np.float32)], step=step)
    assert table.stats()["demoted"] > 20000
    assert spill_file(tmp_path / "spill").stat().st_size < 3 * early + (4 << 20)


def test_evaluation_reads_cold_rows_and_promotes_none(tmp_path: Path) -> None:
    plain, tiers = Table(BASE), tiered(tmp_path / "spill", 50)
    for table in (plain, tiers):
        train([table], 10, num_distinct=3000)
    keys = np.array(sorted(table_contents(plain)), np.uint64)
    outs = [np.empty((len(keys), 16), np.float32) for _ in range(2)]
    before = tiers.stats()["promoted"]
    assert plain.pull(keys, out=outs[0], train=False) is None
    assert tiers.pull(keys, out=outs[1], train=False) is None
    assert outs[0].tobytes() == outs[1].tobytes()
    assert tiers.stats()["promoted"] == before


def test_snapshot_of_cold_rows_while_training_continues(tmp_path: Path) -> None:
    table = tiered(tmp_path / "spill", 100)
    train([table], 10, num_distinct=3000)
    expected = table_contents(table)
    snapshot = table.snapshot()
    rng = np.random.default_rng(5)
    for step in range(10, 30):
        keys = rng.integers(0, 3000, 2000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        handle = table.pull(keys, out=np.empty((2000, 16), np.float32))
        assert handle is not None
        table.push([handle], [np.ones((2000, 16), np.float32)], step=step)
    assert contents(snapshot) == expected
    assert table_contents(table) != expected


def test_short_file_is_named_and_loses_nothing_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "spill"
    table = tiered(path, 50, replace(BASE, max_age=None))
    train([table], 10, num_distinct=20000)
    cold = table.stats()["cold"]
    keys = np.array(sorted(table_contents(table)), np.uint64)
    os.truncate(spill_file(path), 0)
    with pytest.raises(OSError, match=rf"{path}.* {cold} rows.*shorter"):
        table.pull(keys, out=np.empty((len(keys), 16), np.float32), train=False)
    with pytest.raises(OSError, match="spill"):
        table.pull(keys, out=np.empty((len(keys), 16), np.float32))
    assert table.stats()["rows"] == len(keys)


FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from tests.core.test_tiers import BASE, tiered
from tests.core.workload import table_contents, train

table = tiered(Path(sys.argv[1]), 50)
train([table], 3, num_distinct=50000)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))  # what a full disk looks like
for step in range(3, 200):
    keys = np.arange(step * 500, step * 500 + 500, dtype=np.uint64)
    rows = len(table)
    try:
        table.discard(table.pull(keys, out=np.empty((500, 16), np.float32)))
    except OSError as error:
        print(error)
        break
assert len(table) >= rows
found, _, _ = table.read(np.arange(1500, (step - 1) * 500, dtype=np.uint64))
assert found.all()  # those that could not be written are still in memory
"""


def test_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "spill")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "spill" in done.stdout
    assert "cannot be written" in done.stdout


DISK_FULL_FOR_A_WHILE = """
import resource, sys
from dataclasses import replace
from pathlib import Path
import numpy as np
from heterps_hpc.core import Table
from tests.core.test_tiers import BASE

config = replace(BASE, num_partitions=1, spill_path=Path(sys.argv[1]), hot_bytes=1 << 20)
row_bytes = Table(replace(config, spill_path=Path(sys.argv[1] + "-other"))).row_bytes
table = Table(replace(config, hot_bytes=2048 * row_bytes))

def pull(first: int, count: int) -> None:
    keys = np.arange(first, first + count, dtype=np.uint64)
    table.discard(table.pull(keys, out=np.empty((count, BASE.dim), np.float32)))

for first in range(0, 8192, 64):
    pull(first, 64)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, limits[1]))
failed = 0
for first in range(10_000, 10_600):
    try:
        pull(first, 1)
    except OSError:
        failed += 1
assert failed > 200, failed
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
for first in range(20_000, 24_096, 64):
    pull(first, 64)
assert table.stats()["hot"] <= 2048, table.stats()
"""


def test_rows_that_a_full_disk_refused_leave_when_it_has_room_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DISK_FULL_FOR_A_WHILE, str(tmp_path / "spill")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"none/spill.*cannot be opened: No such file"):
        tiered(tmp_path / "none" / "spill", 50)


def test_tables_of_one_path_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two runs on one node may be given the same folder, and call a table and a rank the same."""
    plain = Table(BASE)
    tables = [tiered(tmp_path / "spill", 50) for _ in range(2)]
    train([plain, *tables], 10, num_distinct=2000)
    assert tables[0].stats()["cold"] > 0
    assert [table_contents(table) for table in tables] == [table_contents(plain)] * 2


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    table = tiered(tmp_path / "spill", 100)
    train([table], 10, num_distinct=2000)
    assert table.stats()["cold"] > 0
    assert list(tmp_path.iterdir()) == []
