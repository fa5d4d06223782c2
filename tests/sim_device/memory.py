"""Device memory: who has how many bytes, and which host memory is pinned."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.sim_device.order import Uses
from tests.sim_device.state import NAME, NUM_DEVICES, settings, stats
from tests.sim_device.streams import current_stream

used = [0] * NUM_DEVICES
peak = [0] * NUM_DEVICES
_pinned: dict[int, StorageWeakRef] = {}


class Block:
    """The bytes of one device storage, held by every tensor on it."""

    index = nbytes = 0

    def __init__(self, index: int, nbytes: int) -> None:
        if settings.limit and used[index] + nbytes > settings.limit:
            stats["oom"] += 1
            raise torch.OutOfMemoryError(
                f"{NAME}:{index} out of memory: {nbytes} bytes more, "
                f"{used[index]} of {settings.limit} in use"
            )
        self.index, self.nbytes = index, nbytes
        used[index] += nbytes
        peak[index] = max(peak[index], used[index])
        stream = current_stream(index)
        self.uses = Uses(stream.stream_id, stream.clock)

    def __deepcopy__(self, memo: object) -> Block:
        return self

    def __del__(self, _used: list[int] = used) -> None:
        if self.nbytes:
            _used[self.index] -= self.nbytes
            self.uses.freed()


_blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()


def block_of(raw: torch.Tensor, index: int) -> Block:
    """The block of a private tensor's storage; made, and counted, on first sight."""
    storage = raw.untyped_storage()
    block = _blocks.get(storage._cdata)
    if block is None or block.nbytes != storage.nbytes():
        block = _blocks[storage._cdata] = Block(index, storage.nbytes())
    return block


def memory_info(index: int) -> tuple[int, int]:
    """Free and total bytes of a device."""
    total = settings.limit or 1 << 40
    return total - used[index], total


def poison(raw: torch.Tensor) -> torch.Tensor:
    """What memory holds before anything was written or delivered to it."""
    if raw.is_floating_point() or raw.is_complex():
        return raw.fill_(float("nan"))
    return raw.fill_(True if raw.dtype == torch.bool else torch.iinfo(raw.dtype).max)


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    """Takes the place of `Tensor.is_pinned`."""
    on_host = tensor.device.type == "cpu" and not tensor.is_sparse
    return on_host and tensor.untyped_storage()._cdata in _pinned


def mark_pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Count a host tensor's storage as pinned while it lives."""
    for key in [key for key, reference in list(_pinned.items()) if reference.expired()]:
        _pinned.pop(key, None)
    _pinned[tensor.untyped_storage()._cdata] = StorageWeakRef(tensor.untyped_storage())
    return tensor


def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Takes the place of `Tensor.pin_memory`."""
    if tensor.device.type != "cpu":
        raise RuntimeError(f"cannot pin a tensor on {tensor.device}: only the host's can be")
    if is_pinned(tensor):
        return tensor
    return mark_pinned(tensor.detach().clone(memory_format=torch.contiguous_format))
