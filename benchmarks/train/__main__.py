"""Training throughput against TorchRec, Paddle's parameter server, Horovod, torch, and the limit.

    python -m benchmarks.train [--quick] [--json FILE]

All contenders in one run, alternating, on the same cores and the same data; medians of repeats.
Rates are taken twice: *growing*, in the first pass over the data, when keys are new (TorchRec
allocates its arrays before the clock starts, and we reserve memory as every run from scratch does),
and *settled*, in the second. TorchRec runs with and without huge pages, and the better one counts.
`--quick` measures the limit, ourselves and TorchRec, once; `--near` leaves out the peers that are
far behind, which take most of a run's time.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from dataclasses import replace
from pathlib import Path

from benchmarks.peers import cache_folder
from benchmarks.record import Report
from benchmarks.train.contenders import (
    Contender,
    Figures,
    horovod,
    limit,
    mpirun,
    ours,
    paddle,
    tables_alone,
    torch_alone,
    torchrec,
)
from benchmarks.train.plot import plot
from benchmarks.train.workload import W1, W2, Workload, ready_data

log = logging.getLogger(__name__)

LIMIT, OURS = "limit, dense layers only, 2 processes", "ours, one stage of 2 ranks"
TORCHREC, TORCHREC_HUGE = "TorchRec, 2 ranks", "TorchRec, 2 ranks, huge pages"
SPLIT = "ours, 1 sparse + 1 dense rank"
QUICK = [
    Contender(LIMIT, limit(2)),
    Contender(OURS, ours("*:2", 1)),
    Contender(TORCHREC, torchrec()),
    Contender(TORCHREC_HUGE, torchrec("glibc.malloc.hugetlb=1")),
]
SLOW = [  # far behind: one look is enough
    Contender("torch, 1 process, 2 threads", torch_alone),
    Contender("Horovod, sparse gradients, 2 ranks", horovod),
    Contender("Paddle parameter server, 1 thread", paddle(1)),
    Contender("Paddle parameter server, 2 threads", paddle(2)),
]
NEAR = [
    *QUICK,
    Contender(SPLIT, ours("1:1,*:1", 4)),
    Contender("dense stage alone", limit(1)),
    Contender("sparse stage alone", tables_alone),
]
FULL = [*NEAR, *SLOW]
GOALS = {  # (workload, state) -> goal of our rate over TorchRec's
    ("W1", "growing"): ">= 1.5",
    ("W1", "settled"): ">= 1.5",
    ("W2", "growing"): ">= 1.8",
    ("W2", "settled"): ">= 2",
}
READER_GOALS = {"W1": "<= 3", "W2": "<= 6"}

Found = dict[str, list[Figures]]  # by contender and turn


def measure(work: Workload, contenders: list[Contender], repeats: int, folder: Path) -> Found:
    """What every contender reports; they take turns."""
    data = ready_data(work, folder)
    found: Found = {contender.name: [] for contender in contenders}
    for turn in range(repeats):
        for contender in contenders:
            if turn and contender in SLOW:
                continue
            asked = replace(work, settles=contender not in SLOW)
            found[contender.name].append(contender.run(asked, data))
            log.warning("%s %s: %s", work.name, contender.name, found[contender.name][-1])
    return found


def median(found: Found, name: str, what: str) -> float:
    """Over the turns of a contender."""
    return statistics.median(figures[what] for figures in found[name])


def judge_state(report: Report, work: Workload, found: Found, state: str) -> dict[str, float]:
    """The rates of one state, and the ratios that the goals are about."""
    rates = {name: median(found, name, state) for name in found if state in found[name][0]}
    for name, rate in rates.items():
        report.add(f"{work.name} {name}, {state}", rate, "samples/s")
    best = max(rates[TORCHREC], rates[TORCHREC_HUGE])
    goal = GOALS[work.name, state]
    report.add(f"{work.name} ours / TorchRec, {state}", rates[OURS] / best, "x", goal)
    each = zip(found[OURS], found[TORCHREC], found[TORCHREC_HUGE], strict=True)
    turns = ", ".join(f"{me[state] / max(a[state], b[state]):.2f}" for me, a, b in each)
    report.notes.append(f"{work.name} ours / TorchRec, {state}, turn by turn: {turns}.")
    if work.name == "W1":
        over_limit = rates[OURS] / median(found, LIMIT, "settled")
        report.add(f"W1 ours / limit, {state}", over_limit, "x", ">= 0.9")
    return rates


def judge(report: Report, work: Workload, found: Found) -> dict[str, float]:
    """All that is reported of a workload; the settled rates, or those there are."""
    growing = judge_state(report, work, found, "growing")
    rates = growing | judge_state(report, work, found, "settled")
    share = 100 * median(found, OURS, "reader_share")
    goal = READER_GOALS[work.name]
    report.add(f"{work.name} the reader, share of a step's processor time", share, "%", goal)
    if SPLIT not in rates:
        return rates
    paddle_rates = [rate for name, rate in rates.items() if "Paddle" in name]
    if paddle_rates:
        over_paddle = growing[OURS] / max(paddle_rates)
        report.add(f"{work.name} ours / Paddle at its best", over_paddle, "x", ">= 3")
    slower = min(rates["dense stage alone"], rates["sparse stage alone"])
    report.add(f"{work.name} 1+1 / slower stage alone", rates[SPLIT] / slower, "x", ">= 0.9")
    return rates


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--near", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workloads", default="W1,W2")
    options = parser.parse_args()
    folder = cache_folder().parent / "benchmark-data"
    report = Report("train", "Training throughput, 2 cores")
    found = {}
    for work in (W1, W2):
        if work.name in options.workloads.split(","):
            contenders = QUICK if options.quick else NEAR if options.near else FULL
            repeats = 1 if options.quick else options.repeats
            found[work.name] = judge(report, work, measure(work, contenders, repeats, folder))
    data = ready_data(W1, folder)
    share = mpirun(1, "benchmarks.train.overhead", replace(W1, settles=False).to_json(), data)[
        "share"
    ]
    report.add("W1 our own Python, share of a step", 100 * share, "%", "<= 5")
    report.notes.append(
        "Row-wise Adagrad on rows and Adagrad on dense parameters everywhere, except Paddle: its "
        "parameter server has no dense Adagrad kernel, so it runs Adam there."
    )
    report.finish(options.json)
    if options.json is not None:
        plot(found, options.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
