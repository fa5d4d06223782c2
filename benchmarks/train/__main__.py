"""Training throughput against TorchRec, Paddle's parameter server, Horovod, torch, and the limit.

    python -m benchmarks.train [--quick] [--json FILE]

All rivals in one run, alternating, on the same cores and the same data; medians of repeats.
`--quick` measures the limit, ourselves and TorchRec, once.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from pathlib import Path

from benchmarks.peers import cache_folder
from benchmarks.record import Report
from benchmarks.train.plot import plot
from benchmarks.train.rivals import (
    Rival,
    horovod,
    limit,
    mpirun,
    ours,
    paddle,
    tables_alone,
    torch_alone,
    torchrec,
)
from benchmarks.train.workload import W1, W2, Workload, ready_data

log = logging.getLogger(__name__)

QUICK = [
    Rival("limit, dense layers only, 2 processes", limit(2)),
    Rival("ours, one stage of 2 ranks", ours("*:2", 1)),
    Rival("TorchRec, 2 ranks", torchrec),
]
FULL = [
    *QUICK,
    Rival("ours, 1 sparse + 1 dense rank", ours("1:1,*:1", 4)),
    Rival("dense stage alone", limit(1)),
    Rival("sparse stage alone", tables_alone),
    Rival("torch, 1 process, 2 threads", torch_alone),
    Rival("Horovod, sparse gradients, 2 ranks", horovod),
    Rival("Paddle parameter server, 1 thread", paddle(1)),
    Rival("Paddle parameter server, 2 threads", paddle(2)),
]
_SLOW = {"Horovod, sparse gradients, 2 ranks", "torch, 1 process, 2 threads"}


def measure(
    work: Workload, rivals: list[Rival], repeats: int, folder: Path
) -> dict[str, list[float]]:
    """The rates of every rival; they take turns."""
    data = ready_data(work, folder)
    rates: dict[str, list[float]] = {rival.name: [] for rival in rivals}
    for turn in range(repeats):
        for rival in rivals:
            if turn and (rival.name in _SLOW or "Paddle" in rival.name):
                continue  # far behind: one look is enough
            rates[rival.name].append(rival.run(work, data)["samples_per_second"])
            log.warning("%s %s: %.0f samples/s", work.name, rival.name, rates[rival.name][-1])
    return rates


def judge(report: Report, work: Workload, by_turn: dict[str, list[float]]) -> dict[str, float]:
    """The ratios that the goals are about, of median rates; those rates."""
    for rival in ("limit, dense layers only, 2 processes", "TorchRec, 2 ranks"):
        pairs = zip(by_turn["ours, one stage of 2 ranks"], by_turn[rival], strict=True)
        told = ", ".join(f"{mine / theirs:.2f}" for mine, theirs in pairs)
        report.notes.append(f"{work.name} ours / {rival.partition(',')[0]}, turn by turn: {told}.")
    rates = {name: statistics.median(values) for name, values in by_turn.items()}
    for name, rate in rates.items():
        report.add(f"{work.name} {name}", rate, "samples/s")
    mine = rates["ours, one stage of 2 ranks"]
    over_torchrec = mine / rates["TorchRec, 2 ranks"]
    if work.name == "W1":
        over_limit = mine / rates["limit, dense layers only, 2 processes"]
        report.add("W1 ours / limit", over_limit, "x", ">= 0.85")
        report.add("W1 ours / TorchRec", over_torchrec, "x", ">= 1.25")
    else:
        report.add("W2 ours / TorchRec", over_torchrec, "x", ">= 2")
    if "ours, 1 sparse + 1 dense rank" not in rates:
        return rates
    best_paddle = max(rate for name, rate in rates.items() if "Paddle" in name)
    report.add(f"{work.name} ours / Paddle at its best", mine / best_paddle, "x", ">= 3")
    slower = min(rates["dense stage alone"], rates["sparse stage alone"])
    split = rates["ours, 1 sparse + 1 dense rank"]
    report.add(f"{work.name} 1+1 / slower stage alone", split / slower, "x", ">= 0.9")
    return rates


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workloads", default="W1,W2")
    options = parser.parse_args()
    folder = cache_folder().parent / "benchmark-data"
    report = Report("train", "Training throughput, 2 cores")
    found = {}
    for work in (W1, W2):
        if work.name in options.workloads.split(","):
            rivals = QUICK if options.quick else FULL
            repeats = 1 if options.quick else options.repeats
            found[work.name] = judge(report, work, measure(work, rivals, repeats, folder))
    data = ready_data(W1, folder)
    share = mpirun(1, "benchmarks.train.overhead", W1.to_json(), data)["share"]
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
