"""What each rank runs: many cases in one world, as starting a world takes longer than a case.

mpirun -n 3 python -m mpi4py tests/equivalence/ranks.py DATA OUT CASES.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mpi4py import MPI

from heterps_hpc.dataset import Dataset
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.training import Training
from tests.equivalence.cases import Case, make_job, make_layout, make_model
from tests.equivalence.compare import merge_ranks, save
from tests.equivalence.oracle import Learned


def run_case(comm: Any, case: Case, data: Path) -> Learned | None:
    """Train a case on the ranks of `comm`; the result is on rank 0."""
    job = make_job(case, data)
    dataset = Dataset.open(job.data.train)
    model = make_model(job, dataset.manifest)
    rank = Rank(comm, job, make_layout(case, job, model), dataset)
    training = Training(rank)
    try:
        result = training.run()
        part = {
            "losses": result.losses,
            "dense": rank.dense_tensors(),
            "rows": rank.table_rows(),
            "evaluation": result.evaluation,
        }
    finally:
        training.close()
        rank.close()
    parts = comm.gather(part)
    return None if parts is None else merge_ranks(parts)


def main(data: Path, out: Path, cases: list[Case]) -> None:
    """Run the cases, one after the other; each leaves a file OUT/NAME.RUN.npz."""
    comm = MPI.COMM_WORLD
    runs: dict[str, int] = {}
    for case in cases:
        number = runs[case.name] = runs.get(case.name, -1) + 1
        if comm.rank == 0:
            (out / "current").write_text(case.name)
        learned = run_case(comm, case, data)
        if learned is not None:
            save(learned, out / f"{case.name}.{number}.npz")


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[3]).read_text())
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Case(**each) for each in given])
