"""What each rank runs: many cases in one world, as starting a world takes longer than a case.

mpirun -n 5 python -m mpi4py tests/equivalence/ranks.py DATA OUT ROUNDS.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from mpi4py import MPI

from heterps_hpc.dataset import Dataset
from heterps_hpc.runtime import host_reducer
from heterps_hpc.runtime.device import CPU, choose_device
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.training import Result, Training
from tests.equivalence.cases import DEVICE, Case, make_job, make_layout, make_model
from tests.equivalence.compare import merge_ranks, save
from tests.equivalence.groups import Group
from tests.equivalence.oracle import Learned


def run_case(comm: Any, case: Case, data: Path) -> Learned | None:
    """Train a case on the ranks of `comm`; the result is on rank 0."""
    job = make_job(case, data)
    dataset = Dataset.open(job.data.train)
    model = make_model(job, dataset.manifest)
    rank = Rank(comm, job, make_layout(case, job, model), dataset)
    training = Training(rank)
    try:
        part = part_of(rank, training.run())
    finally:
        training.close()
        rank.close()
    parts = comm.gather(part)
    return None if parts is None else merge_ranks(parts)


def part_of(rank: Rank, result: Result) -> dict[str, Any]:
    """What one rank knows of what was learned."""
    return {
        "losses": result.losses,
        "dense": rank.dense_tensors(),
        "rows": rank.table_rows(),
        "evaluation": result.evaluation,
    }


def main(data: Path, out: Path, rounds: list[list[Group]]) -> None:
    """Run round after round; each group of ranks leaves a file OUT/NAME.RUN.npz."""
    world = MPI.COMM_WORLD
    host_reducer.BUCKET_BYTES = 128  # so that these small models have several buckets
    for number, groups in enumerate(rounds):
        if world.rank == 0:
            (out / "current").write_text(str(number))
        mine = [group for group in groups if world.rank in group.ranks]
        comm = world.Split(mine[0].first_rank if mine else world.size, world.rank)
        if mine:
            learned = run_case(comm, mine[0].case, data)
            if learned is not None:
                save(learned, mine[0].result(out))
        elif DEVICE != CPU:
            choose_device(world, CPU, "a rank without a case")  # ranks share out devices together
        comm.Free()
        wait_for_all(world)


def wait_for_all(world: MPI.Intracomm) -> None:
    """A barrier that leaves the cores to those that still work."""
    everyone = world.Ibarrier()
    while not everyone.Test():
        time.sleep(2e-3)


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[3]).read_text())
    parsed = [[Group(**{**each, "case": Case(**each["case"])}) for each in part] for part in given]
    main(Path(sys.argv[1]), Path(sys.argv[2]), parsed)
