"""Tensors of the device, and how operators run on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tests.sim_device import order
from tests.sim_device.memory import block_of, is_pinned, mark_pinned, poison
from tests.sim_device.state import NAME, device_index, settings, stats, thread
from tests.sim_device.streams import Copy, blocking_read, current_stream

aten = torch.ops.aten
_EMPTY = {
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
}
_INDEX = {aten.index, aten.index_put, aten.index_put_, aten._unsafe_index, aten._index_put_impl_}


@dataclass(frozen=True)
class Traits:
    """What an operator's schema says of it; reading a schema takes longer than most operators."""

    is_view: bool
    is_indexing: bool
    makes_empty: bool
    written: tuple[tuple[int, str], ...]  # arguments that it writes to: position and name
    has_unknown_shape: bool  # of its result, until it has run
    is_read: bool  # by the host, as `item` is

    @staticmethod
    @cache
    def of(function: Any) -> Traits:
        """The traits of an overload."""
        tags, indexing = function.tags, function.overloadpacket in _INDEX
        return Traits(
            is_view=function.is_view,
            is_indexing=indexing,
            makes_empty=function.overloadpacket in _EMPTY,
            written=tuple(
                (position, argument.name)
                for position, argument in enumerate(function._schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            ),
            has_unknown_shape=torch.Tag.dynamic_output_shape in tags and not indexing,
            is_read=torch.Tag.data_dependent_output in tags,
        )


class SimTensor(torch.Tensor):
    """A tensor whose data is a private host tensor, which only operators see."""

    private: torch.Tensor
    index: int

    @staticmethod
    def __new__(cls, private: torch.Tensor, index: int) -> SimTensor:
        """A tensor over private memory."""
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            private.size(),
            strides=private.stride(),
            dtype=private.dtype,
            storage_offset=private.storage_offset(),
            device=torch.device(NAME, index),
        )
        tensor._take(private, index, block_of(private, index))
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Every operator on it."""
        return run_operator(function, args, kwargs or {})

    def _take(self, private: torch.Tensor, index: int, block: Any) -> None:
        self._private, self._index, self._block = private, index, block

    def assign(self, other: SimTensor) -> None:
        """Take over the memory and the shape of another: `tensor.data = other`."""
        torch.Tensor.data.__set__(self, other)
        self._take(other._private, other._index, other._block)

    data = property(torch.Tensor.data.__get__, assign)

    def numpy(self, *_: object, **__: object) -> Any:
        """As on a GPU."""
        raise TypeError(f"can't convert {self.device} tensor to numpy: use Tensor.cpu() first")

    __array__ = numpy

    def tolist(self) -> Any:
        """Waits, as it must."""
        return self.detach().cpu().tolist()

    def record_stream(self, stream: Any) -> None:
        """The memory is not given back before that stream is done with it."""
        self._block.uses.recorded.add(stream.stream_id)

    def __repr__(self, **_: object) -> str:
        """For debugging: waits for nothing, counts nothing."""
        return f"{self._private!r} on {self.device}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        own = ("_private", "_index", "_block")
        copied.__dict__.update({k: v for k, v in self.__dict__.items() if k not in own})
        copied.grad = None if self.grad is None else self.grad.clone()
        return memo.setdefault(id(self), copied)

    def __reduce_ex__(self, protocol: Any) -> Any:
        parts = (self.detach().cpu(), self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, parts


def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """A copy from, to or between devices: at once, or queued."""
    to, to_index = _parts(target)
    origin, from_index = _parts(source)
    kind = "h2d" if from_index is None else "d2h" if to_index is None else "d2d"
    index = to_index if from_index is None else from_index
    host = origin if from_index is None else to
    may_be_late = non_blocking and (not settings.pinned_only or is_pinned(host))
    asynchronous = kind == "d2d" or may_be_late
    stats[kind] += 1
    stats[f"{kind}_bytes"] += to.numel() * to.element_size()
    stats[f"{kind}_async"] += asynchronous
    _touch(index, read=[source], written=[target], what="a copy")
    if kind != "d2d" and may_be_late and settings.late != "off":
        current_stream(index).put(Copy(to, origin, kind == "h2d"))
        return target
    if not asynchronous:
        assert index is not None
        blocking_read(index)
    elif settings.late == "stream":
        for each in {from_index, to_index} - {None}:
            current_stream(each).run()
    to.copy_(origin)
    return target


def run_operator(function: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Run an operator that has a tensor of the device, or the device, among its arguments."""
    if torch.is_inference_mode_enabled():
        done = function.decompose(*args, **kwargs)
        if done is not NotImplemented:
            return done
    with torch.no_grad():
        try:
            return _Call(function, args, kwargs).run()
        except Exception as error:
            if thread.in_backward:
                thread.error = error  # gets lost on its way through C++: see `_backward`
            raise


class _Call:
    """One call of an operator, with its arguments unwrapped."""

    def __init__(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.traits = Traits.of(function)
        self.on_device: list[SimTensor] = []
        self.on_host: list[torch.Tensor] = []
        self.owners: dict[int, SimTensor] = {}  # of private tensors
        self.raw_args = _map(self._unwrap, args)
        self.raw_kwargs = {n: _map(self._unwrap, v) for n, v in kwargs.items() if n != "pin_memory"}
        self.index = self.on_device[0]._index if self.on_device else None  # of the result
        device = self.raw_kwargs.get("device")
        if device is not None:
            self.raw_kwargs["device"] = "cpu"
            self.index = device_index(device) if device.type == NAME else None

    def run(self) -> Any:
        function = self.function
        if function is aten.copy_.default and self.args[0].device != self.args[1].device:
            return copy(*self.args, **self.kwargs)
        if function is aten._to_copy.default and self.index != self.on_device[0]._index:
            return self._to_other_device()
        self._refuse_mixed_devices()
        at = self.on_device[0]._index if self.on_device else self.index
        assert at is not None
        stats["ops"] += 1
        if not self.traits.is_view:
            written = self._written()
            read = self.on_device
            if written:
                read = [t for t in read if not any(t is each for each in written)]
            _touch(at, read, written, function)
        if settings.late == "stream":
            current_stream(at).run()
        if self._host_must_know():
            blocking_read(at)
        result = function(*self.raw_args, **self.raw_kwargs)
        if self.traits.makes_empty:
            poison(result)
        if self.traits.written:
            self._follow_resized()
        if self.index is None:
            return result
        made = _map(self._wrap, result)
        if not self.traits.is_view and not self.traits.written:
            _wrote(at, made)
        return made

    def _unwrap(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, SimTensor):
            self.on_device.append(tensor)
            return self.owners.setdefault(id(tensor._private), tensor)._private
        self.on_host.append(tensor)
        return tensor.detach()

    def _wrap(self, raw: torch.Tensor) -> SimTensor:
        assert self.index is not None
        return self.owners[id(raw)] if id(raw) in self.owners else SimTensor(raw, self.index)

    def _to_other_device(self) -> torch.Tensor:
        options = self.raw_kwargs
        source = self.raw_args[0]
        memory = poison(
            torch.empty_like(
                source, dtype=options.get("dtype"), memory_format=options.get("memory_format")
            )
        )
        late = bool(options.get("non_blocking"))
        if self.index is not None:
            return copy(SimTensor(memory, self.index), self.on_device[0], late)
        return copy(mark_pinned(memory) if late else memory, self.on_device[0], late)

    def _refuse_mixed_devices(self) -> None:
        """Numbers of the host may be read, as on a GPU; its tensors and what is written may not."""
        devices = {f"{NAME}:{tensor._index}" for tensor in self.on_device}
        if self.on_host:
            written, indexing = self._written(), self.traits.is_indexing
            for tensor in self.on_host:
                if (tensor.dim() and not indexing) or any(tensor is each for each in written):
                    devices.add("cpu")
        if len(devices) > 1:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{' and '.join(sorted(devices))}! (in {self.function})"
            )

    def _written(self) -> list[torch.Tensor]:
        """The arguments that the operator writes to."""
        found: list[torch.Tensor] = []
        for position, name in self.traits.written:
            given = self.args[position] if position < len(self.args) else None
            _map(found.append, self.kwargs.get(name, given))
        return found

    def _host_must_know(self) -> bool:
        """Whether the result's shape or value is needed on the host, as of nonzero or item."""
        traits = self.traits
        if traits.is_indexing:
            masks = [t for t in self.args[1] if t is not None]
            if any(mask.dtype in (torch.bool, torch.uint8) for mask in masks):
                return True
        return traits.has_unknown_shape or traits.is_read or any(t.dim() for t in self.on_host)

    def _follow_resized(self) -> None:
        for tensor in self.on_device:
            raw = tensor._private
            if (raw.size(), raw.stride()) != (tensor.size(), tensor.stride()):
                tensor.assign(SimTensor(raw, tensor._index))


def _touch(
    index: int | None, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor], what: object
) -> None:
    """Work of the current stream of a device reads and writes tensors."""
    order.raise_earlier()
    stream = current_stream(index)
    order.issue(stream.stream_id, stream.clock)
    for tensors, writes in ((read, False), (written, True)):
        for tensor in tensors:
            if isinstance(tensor, SimTensor):
                span = _span(tensor._private)
                uses = tensor._block.uses
                uses.touch(span, stream.stream_id, stream.clock, writes=writes, what=what)


def _wrote(index: int, made: Any) -> None:
    """The newest work of a stream wrote new tensors (or views, which an operator may return)."""
    stream = current_stream(index)

    def mark(tensor: Any) -> None:
        uses = tensor._block.uses
        if not uses.writers:
            uses.wrote(_span(tensor._private), stream.stream_id, stream.clock)

    _map(mark, made)


def _span(raw: torch.Tensor) -> order.Span:
    """The bytes of its storage between which a tensor lies."""
    first = raw.storage_offset()
    sizes = zip(raw.size(), raw.stride(), strict=True)
    last = first + sum((size - 1) * stride for size, stride in sizes) if raw.numel() else first - 1
    return first * raw.element_size(), (last + 1) * raw.element_size()


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, int | None]:
    if isinstance(tensor, SimTensor):
        return tensor._private, tensor._index
    return tensor.detach(), None


def _map(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_map(function, each) for each in value)
    return function(value) if isinstance(value, torch.Tensor) else value
