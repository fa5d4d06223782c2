"""The same cases inside a world that is already there, for when one has to be debugged:

mpirun -n 3 python -m mpi4py -m pytest --with-mpi -x tests/equivalence/test_under_mpi.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_hpc.dataset import Dataset
from tests.equivalence.cases import Case, make_job, make_layout, make_model
from tests.equivalence.click_log import write_click_logs
from tests.equivalence.compare import differences
from tests.equivalence.oracle import Oracle
from tests.equivalence.suite import pairwise

MAX_CASES = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Click logs, written by rank 0 and known to all."""
    from mpi4py import MPI

    path = None
    if MPI.COMM_WORLD.rank == 0:
        path = tmp_path_factory.mktemp("click_logs")
        write_click_logs(path)
    found = MPI.COMM_WORLD.bcast(path)
    assert found is not None
    return found


@pytest.mark.mpi(min_size=2)
@pytest.mark.timeout(120)
def test_cases_of_this_world_size(data: Path) -> None:
    from mpi4py import MPI

    from tests.equivalence.ranks import run_case

    comm = MPI.COMM_WORLD
    ran = 0
    for case in pairwise():
        if ran == MAX_CASES or _num_ranks(case, data) != comm.size:
            continue
        ran += 1
        learned = run_case(comm, case, data)
        wrong = []
        if learned is not None:
            job = make_job(case, data)
            dataset = Dataset.open(job.data.train)
            expected = Oracle(job, make_model(job, dataset.manifest), dataset).train()
            wrong = differences(learned, expected, case.precision)
        # all ranks fail together: one that went on alone would wait for the others for ever
        assert comm.bcast(wrong) == [], case.name
    assert ran, f"no case of the suite has {comm.size} ranks"


def _num_ranks(case: Case, data: Path) -> int:
    job = make_job(case, data)
    model = make_model(job, Dataset.open(job.data.train).manifest)
    return make_layout(case, job, model).num_ranks
