"""Sums of dense gradients: however summed the same numbers, and the same bits on every rank."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests.mpi.conftest import OnRanks

Name = Literal["horovod", "mpi", "torch"]
NAMES = {"horovod": "horovod", "mpi": "mpi", "torch": "torch (gloo)"}
SIZES = [pytest.param(n, marks=pytest.mark.mpi(min_size=n)) for n in (1, 2, 3, 4)]


def reduce_on(comm: Any, choice: Name, length: int, halves: bool = False) -> tuple[str, Any, int]:
    """Three sums of a buffer, as three batches would; the name of the reducer, the last sum, and
    the bytes that were summed."""
    import torch

    from heterps_hpc.runtime.device import Device
    from heterps_hpc.runtime.finite import FiniteWatch
    from heterps_hpc.runtime.reducer_choice import make_reducer

    device = Device(torch.device("cpu"))
    reducer = make_reducer(comm, choice, device, halves=FiniteWatch(device) if halves else None)
    flat = torch.zeros(length, dtype=torch.float64)
    for batch in range(3):
        flat.copy_(torch.from_numpy(gradients(comm.rank, batch, length)))
        reducer.start(flat)
        reducer.finish()
    reducer.close()
    return reducer.name, flat.numpy().copy(), reducer.num_bytes


def gradients(rank: int, batch: int, length: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([rank, batch]).standard_normal(length)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("choice", NAMES)
@pytest.mark.parametrize("length", [1, 10_007])
def test_the_sum_is_the_sum_on_every_rank(
    size: int, choice: Name, length: int, on_ranks: OnRanks
) -> None:
    found = on_ranks(size, lambda comm: reduce_on(comm, choice, length))
    expected = sum(gradients(rank, 2, length) for rank in range(size))
    for name, values, num_bytes in found:
        assert name == ("none" if size == 1 else NAMES[choice])
        assert num_bytes == (0 if size == 1 else 3 * 8 * length)
        assert np.allclose(values, expected, rtol=1e-12, atol=1e-14)
        assert np.array_equal(values, found[0][1])


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("choice", NAMES)
def test_half_the_bytes_by_float16(choice: Name, on_ranks: OnRanks) -> None:
    length = 10_007
    found = on_ranks(3, lambda comm: reduce_on(comm, choice, length, halves=True))
    expected = sum(gradients(rank, 2, length) for rank in range(3))
    for name, values, num_bytes in found:
        assert name == f"{NAMES[choice]} in float16"
        assert num_bytes == 3 * 2 * length
        assert np.allclose(values, expected, rtol=2e-3, atol=1e-2)
        assert not np.allclose(values, expected, rtol=1e-7)
        assert np.array_equal(values, found[0][1])


@pytest.mark.mpi(min_size=2)
def test_what_float16_cannot_hold_is_refused(on_ranks: OnRanks) -> None:
    def overflow(comm: Any) -> str:
        import torch

        from heterps_hpc.errors import UserError
        from heterps_hpc.runtime.device import Device
        from heterps_hpc.runtime.finite import FiniteWatch
        from heterps_hpc.runtime.reducer_choice import make_reducer

        device = Device(torch.device("cpu"))
        reducer = make_reducer(comm, "mpi", device, halves=FiniteWatch(device))
        reducer.start(torch.full((3,), 40.0))
        try:
            reducer.finish()
        except UserError as error:
            return str(error)
        finally:
            reducer.close()
        return ""

    assert all("train.dense.compression" in said for said in on_ranks(2, overflow))


@pytest.mark.mpi(min_size=3)
def test_training_with_float16_gradients_stays_near_the_oracle(
    data: Path, on_ranks: OnRanks
) -> None:
    """Within the rounding of eleven bits, and the same bits when repeated."""
    from tests.equivalence.cases import Case
    from tests.equivalence.compare import differences, same_bits
    from tests.equivalence.rounding import ask_oracle

    case = Case("ctrdnn", "3", 2, 1, "float32", "fp16 gradients")

    def run(comm: Any) -> Any:
        from tests.equivalence.ranks import run_case

        return run_case(comm, case, data)

    first, second = on_ranks(3, run)[0], on_ranks(3, run)[0]
    assert same_bits(first, second) == []
    exact = ask_oracle(case.oracle, data)
    assert differences(first, exact, "fp16 gradients") == []
    assert differences(first, exact, "float32") != []


@pytest.mark.mpi(min_size=2)
def test_all_ranks_take_the_same_decision(on_ranks: OnRanks) -> None:
    """A vote of one rank counts for all, the same number of batches later everywhere."""

    def vote(comm: Any) -> list[int]:
        from heterps_hpc.runtime.votes import STOP, Votes

        votes = Votes(comm, lag=2)
        outcomes = []
        for step in range(6):
            votes.cast(step, STOP if (step == 3 and comm.rank == comm.size - 1) else 0)
            outcomes.append(votes.outcome(step))
        votes.finish()
        return outcomes

    found = on_ranks(2, vote)
    assert found[0] == found[1] == [0, 0, 0, 0, 0, 2]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("choice", ["horovod", "mpi"])
def test_waiting_for_a_late_rank_leaves_the_core_to_others(choice: Name, on_ranks: OnRanks) -> None:
    late_by = 0.5

    def wait(comm: Any) -> float:
        import torch

        from heterps_hpc.runtime.device import Device
        from heterps_hpc.runtime.reducer_choice import make_reducer

        reducer = make_reducer(comm, choice, Device(torch.device("cpu")))
        flat = torch.zeros(1000)
        for seconds in (0.0, late_by):  # the first sum also pays for Horovod's start
            time.sleep(seconds if comm.rank == 1 else 0.0)
            began = time.process_time()  # of all threads
            reducer.start(flat)
            reducer.finish()
        reducer.close()
        return time.process_time() - began

    assert on_ranks(2, wait)[0] < late_by / 3
