"""The sparse stage alone: read keys, pull, and push made-up gradients, with the trainer's code.

python -m benchmarks.train.tables_alone WORKLOAD_JSON DATA
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.train.ours import make_job, make_layout
from benchmarks.train.workload import StepClock, Workload, open_reader
from heterps_hpc.dataset import Dataset
from heterps_hpc.models import build_model
from heterps_hpc.runtime.tables import TableShards


def main() -> None:
    """Run and print the rates."""
    work = Workload.from_json(sys.argv[1])
    path = Path(sys.argv[2])
    job = make_job(work, path, 1, 0)
    layout = make_layout(job, "1:1,*:1")
    dataset = Dataset.open(path)
    model = build_model(job.model, dataset.manifest)
    shards = TableShards(layout.ranks[0], model, layout, job, dataset)
    width = work.num_slots * work.dim
    rows = np.zeros((work.batch_size, width), dtype=np.float32)
    gradients = np.random.default_rng(0).standard_normal(rows.shape, dtype=np.float32) * 1e-3
    places = {
        lookup: slice(i * work.dim, (i + 1) * work.dim) for i, lookup in enumerate(shards.lookups)
    }
    reader = open_reader(work, path, 0, 1)
    clock = StepClock(work, work.batch_size)
    for step in range(work.num_steps):
        clock.before(step)
        batch = next(reader)
        views = {lookup: rows[:, place] for lookup, place in places.items()}
        pulled = shards.pull(batch, views, train=True)
        back = {lookup: gradients[:, place] for lookup, place in places.items()}
        shards.push(pulled, back, step, work.sparse_lr)
    clock.before(work.num_steps)
    reader.close()
    print(json.dumps(clock.rates))


if __name__ == "__main__":
    main()
