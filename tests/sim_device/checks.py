"""What the simulated device promises, in a process of its own.

    python -m tests.sim_device.checks

Prints one JSON line: for each check its name and its error, or null.
"""

from __future__ import annotations

import copy
import io
import itertools
import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import accelerator, nn

from tests.sim_device.backend import install, reset
from tests.sim_device.state import stats


def _train(device: str, make: Callable[[Any], torch.optim.Optimizer]) -> torch.Tensor:
    torch.manual_seed(0)
    embedding = nn.Embedding(9, 3).double().to(device)
    layers = (nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))
    net = nn.Sequential(*layers).double().to(device)
    parameters = [*net.parameters(), *embedding.parameters()]
    optimizer = make(parameters)
    inputs = zip(torch.randn(5, 5, 3).double(), torch.randint(0, 4, (5, 5)), strict=True)
    for values, keys in inputs:
        x = values.pin_memory().to(device, non_blocking=True)
        i = keys.pin_memory().to(device, non_blocking=True)
        h = torch.cat([x, embedding(i)], 1)
        h[:, 1::2] *= 0.5
        h[h > 2] = 2.0
        y = net(h)
        z = y.gather(1, i[:, None])[:, 0] + y[:, :2].max(1).values + y.t()[0] + y.var(1)
        loss = nn.BCEWithLogitsLoss()(z, (i > 1).double()) + nn.functional.cross_entropy(y, i)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return torch.cat([p.detach().cpu().reshape(-1) for p in [loss, *parameters]])


def check_accelerator_functions() -> None:
    current = accelerator.current_accelerator()
    assert accelerator.is_available()
    assert accelerator.device_count() == 2
    assert current is not None
    assert current.type == "sim"
    with accelerator.device_index(1):
        assert torch.ones(2).to("sim").device == torch.device("sim:1")
    accelerator.set_device_index(1)
    assert torch.ones(1, device="sim").device.index == 1
    with pytest.raises(RuntimeError):
        torch.ones(1, device="sim:2")


def check_transfers_never_share_memory() -> None:
    host = torch.arange(4.0)
    x = host.to("sim", non_blocking=True)
    host.zero_()
    x.cpu().zero_()
    assert x.tolist() == [0, 1, 2, 3]
    assert torch.ones(4).pin_memory()[1:].is_pinned()
    assert not host.is_pinned()
    with pytest.raises(TypeError):
        x.numpy()
    file = io.BytesIO()
    torch.save(copy.deepcopy(x), file)
    file.seek(0)
    assert torch.load(file, map_location="cpu").equal(torch.arange(4.0))


def check_numbers_equal_the_hosts_and_repeat() -> None:
    for number, (name, fused) in enumerate(
        itertools.product(("SGD", "Adam", "Adagrad"), (False, True))
    ):
        make = lambda p: getattr(torch.optim, name)(p, lr=0.05, fused=fused)  # noqa: E731, B023
        host, found = (_train(where, make) for where in ("cpu", f"sim:{number % 2}"))
        assert (host - found).abs().max() <= 1e-12
    assert torch.equal(found, _train("sim:1", make))


def check_modules_keep_their_parameters() -> None:
    net = nn.Linear(2, 2, bias=False)
    weight = net.weight
    assert net.to("sim").weight is weight
    assert isinstance(weight, nn.Parameter)
    weight.data = torch.arange(4.0, device="sim").view(2, 2)[:1]
    assert weight.tolist() == [[0, 1]]


def check_mixed_devices_are_refused() -> None:
    x = torch.ones(3, device="sim")
    assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2]
    for mixed in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(()).add_(x[0]),
        lambda: x + torch.ones(3, device="sim:1"),
        lambda: nn.Linear(3, 1)(x),
    ):
        with pytest.raises(RuntimeError):
            mixed()


def check_late_copies_need_a_wait() -> None:
    reset(check_order=False)
    side, host = torch.Stream(device="sim"), torch.ones(3).pin_memory()
    assert (host.to("sim", non_blocking=True) + 1).tolist() == [2, 2, 2]  # one stream: in order
    with side:
        x = host.to("sim", non_blocking=True)
        event = side.record_event()
    assert (x + 1).isnan().all().item()  # another stream, and no wait
    assert not event.query()
    assert event.query()
    with side:
        x = host.to("sim", non_blocking=True)
    accelerator.current_stream().wait_stream(side)
    assert (x + 1).tolist() == [2, 2, 2]


def check_a_host_buffer_may_not_change_under_a_copy() -> None:
    host = torch.ones(3).pin_memory()
    x = host.to("sim", non_blocking=True)
    event = torch.Event()
    event.record()
    host.zero_()
    with pytest.raises(RuntimeError, match="changed before"):
        event.synchronize()
    x.copy_(host, non_blocking=True)
    accelerator.synchronize()
    host.fill_(7)  # waited for: no complaint
    accelerator.synchronize()
    back = x.to("cpu", non_blocking=True)
    x.add_(1)
    assert back.isnan().all()  # not yet here
    accelerator.synchronize()
    assert back.tolist() == [0, 0, 0]


def check_streams_wait_before_they_touch_each_others_memory() -> None:
    """Kernels are not late, so their numbers would be right; a device's would not."""
    side, host = torch.Stream(device="sim"), torch.zeros(3).pin_memory()
    current = accelerator.current_stream()
    x = torch.ones(3, device="sim")
    with side, pytest.raises(RuntimeError, match=r"copy uses memory that another stream writes"):
        host.copy_(x, non_blocking=True)
    side.wait_stream(current)
    with side:
        host.copy_(x, non_blocking=True)
        read = side.record_event()
    with pytest.raises(RuntimeError, match=r"add_.* writes memory that another stream reads"):
        x.add_(1)
    current.wait_event(read)
    x.add_(1)
    read.synchronize()
    assert host.tolist() == [1, 1, 1]
    with side:
        y = host.to("sim", non_blocking=True)
    accelerator.synchronize()  # the host has waited for all: whatever comes now is later
    assert (y + x).tolist() == [3, 3, 3]


def check_memory_in_use_is_not_given_back() -> None:
    side, host = torch.Stream(device="sim"), torch.zeros(3).pin_memory()
    for is_recorded in (True, False):
        x = torch.ones(3, device="sim")
        side.wait_stream(accelerator.current_stream())
        with side:
            host.copy_(x, non_blocking=True)
        if is_recorded:
            x.record_stream(side)
        del x
        if is_recorded:
            torch.ones(3, device="sim")
    with pytest.raises(RuntimeError, match="no record_stream"):
        torch.ones(3, device="sim")


def check_events_measure_time() -> None:
    begin, end = (torch.Event("sim", enable_timing=True) for _ in range(2))
    x = torch.ones(3, device="sim")
    begin.record()
    x + x + x
    with torch.Stream(device="sim"):
        torch.ones(3, device="sim")  # not its time
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(2e-3)  # milliseconds, of two kernels
    untimed = torch.Event("sim")
    untimed.record()
    with pytest.raises(RuntimeError, match="without enable_timing"):
        begin.elapsed_time(untimed)
    x.copy_(torch.ones(3).pin_memory(), non_blocking=True)
    end.record()
    with pytest.raises(RuntimeError, match="has not passed yet"):
        begin.elapsed_time(end)


def check_autocast_rounds_where_the_hosts_does() -> None:
    found = []
    for device in ("cpu", "sim"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 1)).to(device)
        x = torch.linspace(-1, 1, 20).view(4, 5).to(device).requires_grad_()
        with torch.autocast(device, dtype=torch.bfloat16):
            y = net(torch.cat([x[:, :2], x[:, 2:]], 1))
            loss = nn.functional.binary_cross_entropy_with_logits(y, (x[:, :1] > 0).float())
            exact = nn.Linear(2, 1).double().to(device)(torch.ones(1, 2).double().to(device))
        assert y.dtype == torch.bfloat16
        assert exact.dtype == torch.float64
        assert loss.dtype == torch.float32
        loss.backward()
        tensors = [y, loss, x.grad, *(p.grad for p in net.parameters())]
        found.append([tensor.detach().cpu() for tensor in tensors if tensor is not None])
    assert len(found[0]) == 9
    assert all(map(torch.equal, *found))


def check_strict_mode_delivers_only_at_a_wait() -> None:
    reset(late="sync", raise_hazards=False, check_order=False)
    host = torch.ones(3).pin_memory()
    x = host.to("sim", non_blocking=True)
    y = x + 1
    host.fill_(5)
    accelerator.synchronize()
    assert y.isnan().all().item()
    assert x.tolist() == [5, 5, 5]
    assert stats["hazards"] == 1


def check_memory_has_a_limit() -> None:
    reset(limit=1000)
    base = accelerator.memory_allocated()
    x = torch.zeros(100, device="sim")
    view = x[10:].view(9, 10)
    assert accelerator.memory_allocated() - base == 400
    with pytest.raises(torch.OutOfMemoryError):
        x.double()
    p = torch.ones(120, device="sim", requires_grad=True)
    with pytest.raises(torch.OutOfMemoryError):
        p.sum().backward()
    del p, x
    assert accelerator.memory_allocated() - base == 400
    del view
    assert accelerator.memory_allocated() == base < accelerator.max_memory_allocated()


def check_counters() -> None:
    x = torch.ones(4).to("sim")
    x.sum().item()
    x.cpu()
    x.nonzero()
    accelerator.synchronize()
    x.to("sim:1")
    names = ("h2d", "h2d_bytes", "d2h", "d2d", "sync", "implicit_sync")
    assert [stats[name] for name in names] == [1, 16, 1, 1, 1, 4]


CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


def main() -> None:
    """Run them all."""
    install()
    found = {}
    for name, check in CHECKS.items():
        reset()
        try:
            check()
            found[name] = None
        except BaseException:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
