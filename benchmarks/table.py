"""The table against FBGEMM, torch and the bare movement of bytes; and its own limits.

    python -m benchmarks.table [--quick] [--json FILE]

--quick: workload (a) with all peers, and memory at 2 million rows. heterps-bfloat16 is the same
table with vectors of two bytes per number; all others have float32. Peers run one thread each, in
turn, on the same core, with and without huge pages (GLIBC_TUNABLES=glibc.malloc.hugetlb=1): the
better of the two counts. FBGEMM gets a virtual environment of its own on first use.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers import peer_python
from benchmarks.record import Report, standard_options
from benchmarks.table_workloads import WORKLOADS

PEERS = ("fbgemm", "torch")
HUGE = "-huge"  # a peer whose allocator asks for huge pages; the better of the two counts
GOALS = {  # workload -> goal of our speed over (FBGEMM's, torch's, the limit's)
    "a": (">= 2", ">= 4", ">= 0.95"),
    "b": (">= 1.3", ">= 2", None),
    "c": (">= 1.5", ">= 2", ">= 0.95"),
    "d": (">= 1.2", ">= 2", None),
}


class Worker:
    """A contender in its own process, which runs only when asked."""

    def __init__(self, name: str, workload: str, clock: str) -> None:
        self.name = name
        is_peer = name.removesuffix(HUGE) in PEERS
        python = str(peer_python("fbgemm")) if is_peer else sys.executable
        tunables = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if name.endswith(HUGE) else {}
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.table_worker", name, workload, clock],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | tunables,
        )  # fmt: skip
        self.huge_bytes = int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{self.name} ended with {self._process.wait()}; see its error above"
            )
        return line

    def run(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return float(self._answer())

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()


@dataclass
class Turns:
    """What was measured of one contender."""

    seconds: list[list[float]] = field(default_factory=list)  # by round and turn
    huge_bytes: int = 0  # of its memory that lies on huge pages

    def median(self) -> float:
        return statistics.median(chain(*self.seconds))


def take_turns(
    workload: str, names: list[str], repeats: int, clock: str, rounds: int
) -> dict[str, Turns]:
    """Every contender goes through the batches once per turn.

    Every round starts new processes: on a virtual machine a process keeps for its life the
    memory that the host gave it, and that may be half as fast as what the next one gets.
    """
    turns = {name: Turns() for name in names}
    for _ in range(rounds):
        with ExitStack() as stack:
            workers = [stack.enter_context(Worker(n, workload, clock)) for n in names]
            taken = [[worker.run() for worker in workers] for _ in range(repeats + 1)]
        for worker, seconds in zip(workers, zip(*taken[1:], strict=True), strict=True):
            turns[worker.name].seconds.append(list(seconds))
            turns[worker.name].huge_bytes = worker.huge_bytes
    return turns


def speed_twice(workload: str, repeats: int) -> float:
    """What two processes with tables of their own reach together, of what one reaches: the most
    that two threads could gain on this machine."""
    workers = [Worker(n, workload, "wall") for n in ("heterps", "heterps-core1")]
    alone, together = [], []
    try:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(repeats + 1):
                alone.append(workers[0].run())
                together.append(statistics.mean(pool.map(Worker.run, workers)))
    finally:
        for worker in workers:
            worker.__exit__(None, None, None)
    return 2 * statistics.median(alone[1:]) / statistics.median(together[1:])


def compare(report: Report, workload: str, repeats: int, clock: str, rounds: int) -> None:
    peers = [peer + kind for peer in PEERS for kind in ("", HUGE)]
    names = ["heterps", "heterps-bfloat16", "limit", *peers]
    threads = workload == "c" and clock == "wall"
    if threads:
        names += ["heterps-2", "heterps-2-inside"]
    w = WORKLOADS[workload]
    turns = take_turns(workload, names, repeats, clock, rounds)
    keys = w.keys_per_batch * w.num_batches
    got = {name: keys / turns[name].median() for name in names}
    for name in names:
        report.add(f"({w.title}) {name}", got[name] / 1e6, "million keys/s")
    for peer, goal in zip((*PEERS, "limit"), GOALS[workload], strict=True):
        best = max(got[name] for name in (peer, peer + HUGE) if name in got)
        report.add(f"({workload}) heterps / {peer}", got["heterps"] / best, "x", goal)
    on_huge_pages = ", ".join(f"{n} {turns[n].huge_bytes >> 20}" for n in ("heterps", *peers))
    report.notes.append(f"({workload}) MiB on huge pages: {on_huge_pages}.")
    if threads:
        report.add("(c) 2 threads / 1", got["heterps-2"] / got["heterps"], "x", ">= 1.7")
        inside = got["heterps-2-inside"] / got["heterps"]
        report.add("(c) 2 threads inside each table, one after the other / 1", inside, "x")
        twice = speed_twice(workload, repeats)
        report.add("(c) two processes at once / one", twice, "x")
        report.notes.append(
            "Two threads on (c) work on two tables at once. Inside one table, by the profiler: the "
            "work of both together is 7 % more than that of one (each looks at all keys of a push, "
            "one joins the lists of distinct keys), 10 % of their time they wait for each other, "
            "and lines that one has written are read by the other in every phase."
        )


def limit_of(name: str, num_rows: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.table_limits", name, str(num_rows)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def memory(report: Report, num_rows: int) -> None:
    got = limit_of("memory", num_rows)
    ratio = got["bytes_per_row"] / (8 + 64 + 4)
    report.add(f"memory per row at {num_rows:,} rows", got["bytes_per_row"], "bytes")
    report.add(f"memory at {num_rows:,} rows / (key + vector + state)", ratio, "x", "<= 1.35")
    half = limit_of("memory-bfloat16", num_rows)["bytes_per_row"]
    report.add(f"memory per row at {num_rows:,} rows, bfloat16", half, "bytes")


def scale(report: Report) -> None:
    """One table of more and more rows, uniform keys: what a key and a new key cost."""
    ns: dict[int, float] = {}
    for num_rows in (1_000_000, 10_000_000, 100_000_000):
        needed = 120 * num_rows + (2 << 30)
        if available_bytes() < needed:
            report.notes.append(f"{num_rows:,} rows left out: they need {needed >> 30} GiB.")
            continue
        got = limit_of("scale", num_rows)
        ns[num_rows] = got["ns_per_key"]
        report.add(f"{num_rows:,} rows: a key, pull + push", got["ns_per_key"], "ns")
        report.add(f"{num_rows:,} rows: touching memory ahead", got["touch_ns_per_row"], "ns/row")
        report.add(
            f"{num_rows:,} rows: the pull of a new key", got["ns_per_new_key"], "ns", "<= 80"
        )
    if len(ns) == 3:
        report.add("100 million rows / 1 million", ns[100_000_000] / ns[1_000_000], "x", "<= 2")


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(ln.split()[1]) << 10 for ln in lines if ln.startswith("MemAvailable"))


def growth(report: Report, num_rows: int) -> None:
    # The slowest of hundreds of batches is judged. What the table does in a batch is the same in
    # every run, what the system does is not: so each batch counts with its median of three runs.
    runs = [limit_of("growth", num_rows)["seconds"] for _ in range(3)]
    seconds = [statistics.median(same) for same in zip(*runs, strict=True)]
    median, slowest = statistics.median(seconds), max(seconds)
    report.add("growing: median batch of 65,536 new keys", median * 1e3, "ms")
    report.add("growing: slowest batch", slowest * 1e3, "ms")
    report.add(f"growing to {num_rows:,} rows: slowest / median", slowest / median, "x", "<= 10")
    each = ", ".join(f"{max(run) / statistics.median(run):.1f}" for run in runs)
    report.notes.append(
        f"Growing: each batch by its median of three runs; within single runs {each} x. Batches "
        "of 100 ms and more come at another place in every run, in user time, after first touches "
        "of memory: the host's, not the table's."
    )


def tiers(report: Report, num_rows: int) -> None:
    got = limit_of("tiers", num_rows)
    report.add("tiers: all in memory", got["plain_keys_per_s"] / 1e6, "million keys/s")
    report.add("tiers: a quarter in memory", got["tiered_keys_per_s"] / 1e6, "million keys/s")
    report.add(f"tiers at {num_rows:,} rows: speed kept", got["ratio"], "x", ">= 0.5")


def main() -> None:
    parser = standard_options(__doc__)
    parts = [*WORKLOADS, "memory", "growth", "scale", "tiers"]
    parser.add_argument("--only", nargs="+", choices=parts, help="some parts")
    parser.add_argument("--repeats", type=int, help="turns of each contender (7; quick 5)")
    parser.add_argument("--rounds", type=int, help="times that all start from new (3; quick 1)")
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: count processor time, for a machine that does other work meanwhile",
    )
    options = parser.parse_args()
    chosen = options.only or (["a", "memory"] if options.quick else parts)
    report = Report("table", "The table: pull + push, row-wise Adagrad, one thread")
    if options.clock == "cpu":
        report.notes.append("Workloads timed by processor seconds: the machine was not idle.")
    repeats = options.repeats or (5 if options.quick else 7)
    rounds = options.rounds or (1 if options.quick else 3)
    for part in chosen:
        if part in WORKLOADS:
            compare(report, part, repeats, options.clock, rounds)
        elif part == "memory":
            memory(report, 2_000_000)
            if not options.quick:
                memory(report, 10_000_000)
        elif part == "growth":
            growth(report, 20_000_000)
        elif part == "scale":
            scale(report)
        else:
            tiers(report, 20_000_000)
    report.notes.append(
        "The limit moves every key's bytes; the table moves a row once per batch however often "
        "its key occurs, so it can be faster than the limit."
    )
    report.finish(options.json)


if __name__ == "__main__":
    main()
