"""One large table: memory per row, the slowest batch while growing, speed by size, and tiers.

`python -m benchmarks.table_limits memory|memory-bfloat16|growth|scale|tiers NUM_ROWS` prints one
JSON object; each runs in a process of its own, so that the resident set is its own.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import pin_to_cores
from benchmarks.table_workloads import SPREAD, Skew
from heterps_hpc.core import Table, TableConfig

DIM = 16
BATCH = 65_536


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def wait_until_touched() -> float:
    """Wait for the thread that touches reserved memory; the seconds that it took."""
    start = last_grown = time.perf_counter()
    before = resident_bytes()
    while time.perf_counter() - last_grown < 1:
        time.sleep(0.01)
        if (now := resident_bytes()) > before:
            before, last_grown = now, time.perf_counter()
    return last_grown - start


def buffers() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What a batch is pulled into, and its gradient."""
    return np.zeros((BATCH, DIM), np.float32), np.full((BATCH, DIM), 1e-3, np.float32)


def fill(
    table: Table,
    index: NDArray[np.int64],
    out: NDArray[np.float32],
    gradient: NDArray[np.float32],
) -> list[float]:
    """Give every index a row, a batch at a time; the seconds of each batch."""
    seconds = []
    for at in range(0, len(index), BATCH):
        keys = index[at : at + BATCH].astype(np.uint64) * SPREAD
        start = time.perf_counter()
        handle = table.pull(keys, out=out[: len(keys)])
        assert handle is not None
        table.push([handle], [gradient[: len(keys)]], step=0)
        seconds.append(time.perf_counter() - start)
    return seconds


def memory(num_rows: int, precision: Literal["bfloat16"] | None = None) -> dict[str, float]:
    config = TableConfig(dim=DIM, precision=precision)
    index = np.arange(num_rows)
    batch = buffers()  # outlives the tables: freed in between, it would be counted as theirs
    # What batches need, whatever the number of rows; the C library keeps it from the second on.
    for _ in range(2):
        fill(Table(config), index[:BATCH], *batch)
    before = resident_bytes()
    table = Table(config)
    fill(table, index, *batch)
    grown = resident_bytes() - before
    return {"bytes_per_row": grown / num_rows, "counted": table.memory_bytes() / num_rows}


def growth(num_rows: int) -> dict[str, list[float]]:
    """The seconds of each batch."""
    seconds = fill(Table(TableConfig(dim=DIM)), np.arange(num_rows), *buffers())
    if num_rows % BATCH:
        seconds.pop()  # a short batch is no batch to compare with
    return {"seconds": seconds}


def scale(num_rows: int) -> dict[str, float]:
    """Medians over batches, when all rows are there, and for new ones while they come.

    Memory is reserved, and the clock starts when it has been touched, as with peers, which allocate
    when they are made; what touching costs, on another thread, is listed apart.
    """
    table = Table(TableConfig(dim=DIM))
    table.reserve(num_rows)
    touch_seconds = wait_until_touched()
    out, gradient = buffers()
    new_seconds = []
    for at in range(0, num_rows - BATCH, BATCH):
        keys = np.arange(at, at + BATCH).astype(np.uint64) * SPREAD
        start = time.perf_counter()
        handle = table.pull(keys, out=out)
        new_seconds.append(time.perf_counter() - start)
        assert handle is not None
        table.discard(handle)
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(120):
        keys = rng.integers(0, num_rows - BATCH, BATCH).astype(np.uint64) * SPREAD
        start = time.perf_counter()
        handle = table.pull(keys, out=out)
        assert handle is not None
        table.push([handle], [gradient], step=0)
        seconds.append(time.perf_counter() - start)
    return {
        "ns_per_key": statistics.median(seconds[20:]) / BATCH * 1e9,
        "ns_per_new_key": statistics.median(new_seconds) / BATCH * 1e9,
        "touch_ns_per_row": touch_seconds / num_rows * 1e9,
    }


def tiers(num_rows: int) -> dict[str, float]:
    draw = Skew(num_rows, 1.1, np.random.default_rng(3))
    rare_first = draw.by_rank()[::-1]  # as after a long run: the frequent rows are in memory
    batches = [draw(BATCH).astype(np.uint64) * SPREAD for _ in range(60)]
    with tempfile.TemporaryDirectory(dir="build") as folder:
        plain = Table(TableConfig(dim=DIM))
        row_bytes = 80  # with the field that counts uses
        tiered = Table(
            TableConfig(
                dim=DIM, hot_bytes=num_rows // 4 * row_bytes, spill_path=Path(folder) / "spill"
            )
        )
        assert tiered.row_bytes == row_bytes
        out, gradient = buffers()
        for table in (plain, tiered):
            fill(table, rare_first, out, gradient)
        times: dict[str, list[float]] = {"plain": [], "tiered": []}
        for i, keys in enumerate(batches[:-1]):
            for name, table in (("plain", plain), ("tiered", tiered)):
                start = time.perf_counter()
                handle = table.pull(keys, out=out)
                table.prefetch(batches[i + 1])
                assert handle is not None
                table.push([handle], [gradient], step=0)
                times[name].append(time.perf_counter() - start)
        stats = tiered.stats()
    half = len(times["plain"]) // 2
    median = {name: statistics.median(t[half:]) for name, t in times.items()}
    return {
        "plain_keys_per_s": BATCH / median["plain"],
        "tiered_keys_per_s": BATCH / median["tiered"],
        "ratio": median["plain"] / median["tiered"],
        "hot": stats["hot"],
        "cold": stats["cold"],
        "promoted": stats["promoted"],
    }


def main() -> None:
    which: dict[str, Any] = {
        "memory": memory,
        "memory-bfloat16": partial(memory, precision="bfloat16"),
        "growth": growth,
        "scale": scale,
        "tiers": tiers,
    }
    name, num_rows = sys.argv[1], int(sys.argv[2])
    pin_to_cores([0, 1] if name == "tiers" else [0])
    print(json.dumps(which[name](num_rows)))


if __name__ == "__main__":
    main()
