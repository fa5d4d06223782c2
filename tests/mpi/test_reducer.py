"""Sums of dense gradients: however summed the same numbers, and the same bits on every rank."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from tests.mpi.conftest import OnRanks

Name = Literal["horovod", "mpi", "torch"]
NAMES = {"horovod": "horovod", "mpi": "mpi", "torch": "torch (gloo)"}
SIZES = [pytest.param(n, marks=pytest.mark.mpi(min_size=n)) for n in (1, 2, 3, 4)]


def reduce_on(comm: Any, choice: Name, length: int) -> tuple[str, Any]:
    """Three sums of a buffer, as three batches would; the name of the reducer and the last sum."""
    import torch

    from heterps_hpc.runtime.device import Device
    from heterps_hpc.runtime.reducer import make_reducer

    reducer = make_reducer(comm, choice, Device(torch.device("cpu")))
    flat = torch.zeros(length, dtype=torch.float64)
    for batch in range(3):
        flat.copy_(torch.from_numpy(gradients(comm.rank, batch, length)))
        reducer.start(flat)
        reducer.finish()
    reducer.close()
    return reducer.name, flat.numpy().copy()


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
    for name, values in found:
        assert name == ("none" if size == 1 else NAMES[choice])
        assert np.allclose(values, expected, rtol=1e-12, atol=1e-14)
        assert np.array_equal(values, found[0][1])


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
