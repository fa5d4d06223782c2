"""Which accelerator is whose: one rule for the preflight and for the ranks themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mpi4py import MPI

from heterps_hpc.cluster import Pool
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


@pytest.mark.parametrize("name", ["gpu", "CUDA", "cuda:0", ""])
def test_a_pool_names_its_device_as_torch_does(name: str) -> None:
    pool = {"name": "p", "price_per_hour": 1, "max_ranks": 1, "gpus_per_node": 1}
    xpus = Pool.parse({**pool, "device": "xpu"}, "cluster")
    assert xpus.ranks_per_node == 1
    assert xpus.is_accelerator
    with pytest.raises(UserError, match="is not a device: write `cpu`"):
        Pool.parse({**pool, "device": name}, "cluster")
    with pytest.raises(UserError, match="has device xpu but gpus_per_node is 0"):
        Pool.parse({**pool, "device": "xpu", "gpus_per_node": 0}, "cluster")


def test_torch_is_asked_for_devices_in_one_module() -> None:
    package = Path(device.__file__).parents[1]
    asking = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"torch\.(cuda|xpu|accelerator)\b", path.read_text())
    }
    assert asking == {"runtime/device.py"}
