"""The table against FBGEMM, torch and the bare movement of bytes; and its own limits.

    python -m benchmarks.table [--quick] [--json FILE]

--quick: workload (a) with all rivals, and memory at 2 million rows. Rivals run one thread each,
in turn, on the same core. FBGEMM gets a virtual environment of its own on first use.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.record import Report, standard_options
from benchmarks.table_workloads import WORKLOADS

RIVAL_ENV = Path("build/venvs/fbgemm")
# torch by itself first: as a dependency pip would take the newest, with CUDA
RIVAL_PINS = (["torch==2.13.0", "numpy"], ["fbgemm-gpu-cpu==1.8.0"])
GOALS = {  # workload -> goal of our speed over (FBGEMM's, torch's)
    "a": (">= 4", ">= 5"),
    "b": (">= 1", ">= 1"),
    "c": (">= 1", ">= 1"),
    "d": (">= 1", ">= 1"),
}


def rival_python() -> str:
    python = RIVAL_ENV / "bin/python"
    marker = RIVAL_ENV / "complete"
    if not marker.exists():
        subprocess.run([sys.executable, "-m", "venv", str(RIVAL_ENV)], check=True)
        for packages in RIVAL_PINS:
            subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        marker.touch()
    return str(python)


class Worker:
    """A contender in its own process, which runs only when asked."""

    def __init__(self, name: str, workload: str, python: str, clock: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.table_worker", name, workload, clock],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._answer()

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


Seconds = dict[str, list[list[float]]]  # of each contender, by round and turn


def take_turns(workload: str, names: list[str], repeats: int, clock: str, rounds: int) -> Seconds:
    """Every contender goes through the batches once per turn.

    Every round starts its processes anew: on a virtual machine a process keeps for its life the
    memory that the host gave it, and that may be half as fast as what the next one gets.
    """
    seconds: Seconds = {n: [] for n in names}
    for _ in range(rounds):
        with ExitStack() as stack:
            workers = []
            for n in names:
                python = rival_python() if n in ("fbgemm", "torch") else sys.executable
                workers.append(stack.enter_context(Worker(n, workload, python, clock)))
            turns = [[worker.run() for worker in workers] for _ in range(repeats + 1)]
        for n, taken in zip(names, zip(*turns[1:], strict=True), strict=True):
            seconds[n].append(list(taken))
    return seconds


def speed_twice(workload: str, repeats: int) -> float:
    """What two processes with tables of their own reach together, of what one reaches: the most
    that two threads could gain on this machine."""
    workers = [Worker(n, workload, sys.executable, "wall") for n in ("heterps", "heterps-core1")]
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
    names = ["heterps", "limit", "fbgemm", "torch"]
    threads = workload == "c" and clock == "wall"
    if threads:
        names += ["heterps-2", "heterps-2-inside"]
    w = WORKLOADS[workload]
    seconds = take_turns(workload, names, repeats, clock, rounds)
    keys = w.keys_per_batch * w.num_batches
    got = {n: keys / statistics.median(chain(*seconds[n])) for n in names}
    title = w.title
    for name in names:
        report.add(f"({title}) {name}", got[name] / 1e6, "million keys/s")
    for rival, goal in zip(("fbgemm", "torch"), GOALS[workload], strict=True):
        report.add(f"({workload}) heterps / {rival}", got["heterps"] / got[rival], "x", goal)
    report.add(f"({workload}) heterps / limit", got["heterps"] / got["limit"], "x")
    pairs = zip(seconds["fbgemm"], seconds["heterps"], strict=True)
    by_round = [statistics.median(theirs) / statistics.median(ours) for theirs, ours in pairs]
    report.notes.append(
        f"({workload}) heterps / fbgemm by rounds: {', '.join(f'{r:.2f}' for r in by_round)}."
    )
    if threads:
        report.add("(c) 2 threads / 1", got["heterps-2"] / got["heterps"], "x", ">= 1.6")
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
    report.add("memory / (key + vector + state)", ratio, "x", "<= 1.35")


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
    parts = [*WORKLOADS, "memory", "growth", "tiers"]
    parser.add_argument("--only", nargs="+", choices=parts, help="some parts")
    parser.add_argument("--repeats", type=int, help="turns of each contender (7; quick 5)")
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
    for part in chosen:
        if part in WORKLOADS:
            compare(report, part, repeats, options.clock, 1 if options.quick else 3)
        elif part == "memory":
            memory(report, 2_000_000 if options.quick else 10_000_000)
        elif part == "growth":
            growth(report, 20_000_000)
        else:
            tiers(report, 20_000_000)
    report.notes.append(
        "The limit moves every key's bytes; the table moves a row once per batch however often "
        "its key occurs, so it can be faster than the limit."
    )
    report.finish(options.json)


if __name__ == "__main__":
    main()
