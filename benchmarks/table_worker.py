"""One contender in a process of its own:
`python -m benchmarks.table_worker NAME WORKLOAD CLOCK`.

It prints the bytes that it has on huge pages; then, for every line on its input, it goes through
all batches once and prints the seconds taken.
"""

from __future__ import annotations

import os
import sys
import time

from benchmarks.memory_probe import anon_huge_bytes
from benchmarks.table_contenders import CONTENDERS
from benchmarks.table_workloads import WORKLOADS


def main() -> None:
    name, workload, clock = sys.argv[1:4]
    now = time.process_time if clock == "cpu" else time.perf_counter
    cores = sorted(os.sched_getaffinity(0))
    two = cores[:2]
    uses = {"heterps-2": two, "heterps-2-inside": two, "heterps-core1": cores[1:2]}
    os.sched_setaffinity(0, uses.get(name, cores[:1]))
    w = WORKLOADS[workload]
    step, prepare = CONTENDERS[name](w)
    batches = [prepare(batch) for batch in w.batches()]
    step(batches[0])
    print(anon_huge_bytes(), flush=True)
    for _ in sys.stdin:
        start = now()
        for batch in batches:
            step(batch)
        print(now() - start, flush=True)


if __name__ == "__main__":
    main()
