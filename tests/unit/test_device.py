"""Which accelerator is whose: one rule for the preflight and for the ranks themselves."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from heterps_hpc.errors import UserError
from heterps_hpc.runtime import device
from heterps_hpc.runtime.device import Visible, choose_device, device_problem, own_index


def test_ranks_that_see_the_same_devices_take_turns() -> None:
    ranks = [Visible("g1", ("a", "b")), Visible("g2", ("a", "b")), Visible("g1", ("a", "b"))]
    assert [own_index(ranks, rank) for rank in range(3)] == [0, 0, 1]
    bound = [Visible("g1", ("a",)), Visible("g1", ("b",))]  # as --gpus-per-task binds them
    assert [own_index(bound, rank) for rank in range(2)] == [0, 0]


def test_two_ranks_never_share_a_device() -> None:
    ranks = [Visible("g1", ("a",)), Visible("g1", ("a",))]
    assert device_problem("cuda", ranks, 0) is None
    problem = device_problem("cuda", ranks, 1)
    assert problem is not None
    assert "would take cuda device 1 of g1 but sees 1; ask for more" in problem


def test_a_rank_refuses_what_the_preflight_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a preflight too (measure, predict), and never by going round to device 0 again."""
    monkeypatch.setattr(device, "visible_devices", lambda kind: ())
    with pytest.raises(UserError, match=r"rank 0 .*: would take cuda device 0 of .* but sees 0"):
        choose_device(MPI.COMM_SELF, "cuda", "rank 0 dense stage 1 on g1")


def test_an_unknown_kind_has_no_devices() -> None:
    assert device.visible_devices("cpu") == ()
    assert device.visible_devices("abacus") == ()
