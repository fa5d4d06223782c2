"""What a full link carries when several ranks are at its other end, with plain sockets.

    python -m benchmarks.shared_link [--quick] [--json FILE]

On *thin-pipe*: rows of batches of two micro-batches go from one, two or four slow nodes to the fast
one, and gradients come back; each sender has two batches in flight, as with staleness 1. It is the
pattern of tables alone before dense layers (benchmarks.unlike, sparse), without our code and MPI.
The first micro-batch should be there after half of a batch's time; where flows of several nodes
share the link as they come it is later, and its gradients leave later. Needs root.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.record import Report, standard_options
from benchmarks.shared_link_rank import MICRO_BATCHES
from benchmarks.unlike.cases import BATCH_SIZE, WORKS
from benchmarks.unlike.runs import PORT
from slurm.dev_cluster.cluster import DevCluster
from slurm.dev_cluster.guard import guarded
from slurm.dev_cluster.nodes_file import find_nodes_file, load_nodes
from slurm.dev_cluster.spec import ClusterSpec

BATCH_BYTES = WORKS[1].num_slots * 16 * 4 * BATCH_SIZE  # pooled rows, 16 floats of each slot


def run(cluster: DevCluster, num_peers: int, in_flight: int) -> tuple[float, float]:
    """Seconds per batch, and the share of them after which the first micro-batch was there."""

    def start(node: str, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.shared_link_rank", *map(str, words)]
        return subprocess.Popen(
            cluster.inside(node, command), stdout=subprocess.PIPE, text=True, env=os.environ
        )

    host = cluster.spec.address("f1")
    part = BATCH_BYTES // MICRO_BATCHES // num_peers
    processes = [start("f1", "dense", part, num_peers)]
    for number in range(1, num_peers + 1):
        processes.append(start(f"s{number}", "tables", part, host, in_flight))
    answers = [process.communicate(timeout=60)[0] for process in processes]
    seconds, share = map(float, answers[0].split())
    return seconds, share


def main() -> None:
    """Every number of ranks in turn, some times over."""
    options = standard_options(__doc__).parse_args()
    repeats = 1 if options.quick else 3
    report = Report("shared_link", "A full link with several ranks at its other end, plain sockets")
    nodes = load_nodes(find_nodes_file("thin-pipe"))
    spec = ClusterSpec(Path(f"/tmp/hl-{os.getpid()}"), PORT, nodes.nodes)
    cases = [(num, in_flight) for in_flight in (2, 4) for num in (1, 2, 4)]
    found: dict[tuple[int, int], list[tuple[float, float]]] = {case: [] for case in cases}
    with guarded(DevCluster(spec)) as cluster:
        for _ in range(repeats):
            for case in cases:
                found[case].append(run(cluster, *case))
    for (num, in_flight), results in found.items():
        name = f"{num} to 1, {in_flight} batches in flight"
        rates = [BATCH_SIZE / seconds for seconds, _ in results]
        report.add(f"{name}: median", statistics.median(rates), "samples/s")
        each = ", ".join(
            f"{r:,.0f} ({share:.2f})" for r, (_, share) in zip(rates, results, strict=True)
        )
        report.notes.append(f"{name}, each run (first micro-batch there after): {each}")
    report.finish(options.json)


if __name__ == "__main__":
    main()
