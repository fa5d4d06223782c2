"""Channels: how rows, activations and their gradients get from one rank to another.

A channel is one direction between this rank and one peer, for one kind of message. Its two ends,
`Sender` and `Receiver`, own everything that the two ranks must agree on: which columns and rows
of which tensors, their type in messages, how gradients are scaled to fit into it, and the buffers.
Where a tensor's own memory already is the message, it is sent or received without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from heterps_hpc.config import TrainSpec
from heterps_hpc.row_ranges import Range
from heterps_hpc.runtime.device import CPU, Device, Ready
from heterps_hpc.runtime.exchange.routes import ChannelEnd, ColumnSlice, Route, message_rows
from heterps_hpc.runtime.exchange.transport import Arrival, Exchange, LocalArrival, MessageKind

POOLED = "pooled rows"  # the one tensor at the end where tables are

_SHORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Wire:
    """The type of numbers in messages."""

    dtype: torch.dtype
    # The gradient of a mean over B samples is about 1/B of a sample's own, which for common B is
    # among float16's subnormal numbers. A power of two near B loses no digit on the way.
    gradient_scale: float = 1.0


def make_wire(train: TrainSpec) -> Wire:
    """The wire of a job; `wire: float32` means that messages carry what is in memory."""
    if train.wire in _SHORT:
        scale = 2.0 ** (train.batch_size.bit_length() - 1) if train.wire == "float16" else 1.0
        return Wire(_SHORT[train.wire], scale)
    return Wire(getattr(torch, train.dtype))


class Channels:
    """Makes the ends of a rank's channels; knows what all of them have in common."""

    def __init__(self, exchange: Exchange, train: TrainSpec, device: Device) -> None:
        self.exchange = exchange
        self.wire = make_wire(train)
        self.batch_size = train.batch_size
        self.num_micro_batches = train.micro_batches
        self.device = device

    def sender(
        self,
        kind: MessageKind,
        route: Route,
        num_batches: int,
        check: Callable[[], None] | None = None,
    ) -> Sender:
        """This rank's end of a channel that it sends on.

        `check` may raise just before a message from a device leaves.
        """
        here, there = (route.source, route.target) if kind.is_forward else _reverse(route)
        return Sender(self, kind, here, there, route, num_batches, check)

    def receiver(
        self,
        kind: MessageKind,
        route: Route,
        num_batches: int,
        landing: torch.Tensor | None = None,
    ) -> Receiver:
        """This rank's end of a channel that it receives on; `landing`: straight into a matrix."""
        here, there = _reverse(route) if kind.is_forward else (route.source, route.target)
        return Receiver(self, kind, here, there, route, num_batches, landing)


def _reverse(route: Route) -> tuple[ChannelEnd, ChannelEnd]:
    return route.target, route.source


class _Channel:
    """What both ends have: rows, columns, type and scale, and a ring of buffers."""

    def __init__(
        self,
        common: Channels,
        kind: MessageKind,
        here: ChannelEnd,
        there: ChannelEnd,
        route: Route,
        num_batches: int,
    ) -> None:
        self.kind = kind
        self.peer = there.rank
        self.dtype = common.wire.dtype
        self.scale = 1.0 if kind.is_forward else common.wire.gradient_scale
        self.slices = route.slices
        if here.has_whole_batch:
            self.slices = (ColumnSlice(POOLED, 0, 0, route.width),)
        self._width = route.width
        self._here, self._there = here, there
        self._exchange = common.exchange
        self._device = common.device
        self._num_micro_batches = common.num_micro_batches
        self._num_batches = num_batches
        batch = (common.batch_size, common.num_micro_batches)
        self._max_rows = min(
            sum(last - first for first, last in end.rows(*batch)) for end in (here, there)
        )
        self._known_rows: dict[int, list[Range]] = {}
        self._ring: list[torch.Tensor] = []

    def rows(self, num_rows: int) -> list[Range]:
        """The rows of each micro-batch's message, in the tensors at this end."""
        if num_rows not in self._known_rows:
            self._known_rows[num_rows] = message_rows(
                self._here, self._there, num_rows, self._num_micro_batches
            )
        return self._known_rows[num_rows]

    def _make_ring(self) -> None:
        self._ring = [
            self._device.buffer(self._max_rows, self._width, self.dtype)
            for _ in range(self._num_batches)
        ]

    def _blocks(self, batch: int, num_rows: int) -> list[torch.Tensor]:
        """Host memory for the messages of a batch, end to end."""
        buffer = self._ring[batch % self._num_batches]
        blocks = []
        first = 0
        for low, high in self.rows(num_rows):
            blocks.append(buffer[first : first + high - low])
            first += high - low
        return blocks


class _Checked:
    """A message that is looked at once it is on the host, before it leaves."""

    def __init__(self, ready: Ready, check: Callable[[], None]) -> None:
        self._ready = ready
        self._check = check

    def query(self) -> bool:
        """Whether it may leave."""
        if not self._ready.query():
            return False
        self._check()
        return True

    def synchronize(self) -> None:
        """Wait until it is on the host."""
        self._ready.synchronize()


class Sender(_Channel):
    """The sending end. Buffers of a batch are used again `num_batches` later."""

    def __init__(
        self,
        common: Channels,
        kind: MessageKind,
        here: ChannelEnd,
        there: ChannelEnd,
        route: Route,
        num_batches: int,
        check: Callable[[], None] | None,
    ) -> None:
        super().__init__(common, kind, here, there, route, num_batches)
        self._check = check

    def send(
        self, batch: int, num_rows: int, micro_batch: int, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """Start to send the rows of a micro-batch; `tensors` are matrices, one row per sample."""
        first, last = self.rows(num_rows)[micro_batch]
        if first == last:
            return
        message, ready = self._by_reference(tensors, first, last), None
        if message is None:
            if not self._ring:
                self._make_ring()
            message = self._blocks(batch, num_rows)[micro_batch]
            ready = self._pack(tensors, first, last, message)
        self._exchange.send(self.kind, self.peer, batch, message, ready)

    def _by_reference(
        self, tensors: Mapping[str, torch.Tensor], first: int, last: int
    ) -> torch.Tensor | None:
        """A tensor's own memory, if it already is the message."""
        only = self.slices[0]
        tensor = tensors[only.tensor]
        if len(self.slices) > 1 or tensor.dtype != self.dtype or tensor.device.type != CPU:
            return None
        # True while float16, the one type that needs a scale, is a type of messages only: the
        # tensors of a stage are float32 or float64, so equal types mean an unscaled wire.
        assert self.scale == 1.0, f"{self.dtype} in memory needs gradients scaled by {self.scale}"
        column = only.tensor_column
        rows = tensor[first:last, column : column + only.width]
        # a message to this rank itself is copied by its receiver: no need to do so twice
        if rows.is_contiguous() or self._exchange.is_local(self.peer):
            return rows
        return None

    def _pack(
        self, tensors: Mapping[str, torch.Tensor], first: int, last: int, message: torch.Tensor
    ) -> Ready | None:
        """Copy columns into a message; where they are on a device, they are joined there first."""
        on_host = tensors[self.slices[0].tensor].device.type == CPU
        packed = message if on_host else torch.empty_like(message, device=self._device.device)
        for each in self.slices:
            column = each.tensor_column
            source = tensors[each.tensor][first:last, column : column + each.width]
            target = packed[:, each.message_column : each.message_column + each.width]
            target.copy_(source if self.scale == 1.0 else source * self.scale)
        if on_host:
            return None
        ready = self._device.download(packed, message)
        return ready if ready is None or self._check is None else _Checked(ready, self._check)


@dataclass(frozen=True)
class Message:
    """A message that has arrived."""

    data: torch.Tensor
    slices: tuple[ColumnSlice, ...]
    rows: Range  # in the tensors at the receiving end
    scale: float

    def has(self, tensor: str) -> bool:
        """Whether it carries columns of a tensor."""
        return any(each.tensor == tensor for each in self.slices)

    def is_all_of(self, tensor: str, num_rows: int, width: int) -> bool:
        """Whether it is exactly that tensor: then nothing need be copied."""
        first = self.slices[0]
        return (
            len(self.slices) == 1
            and (first.tensor, first.width, first.adds) == (tensor, width, False)
            and self.rows == (0, num_rows)
            and self.scale == 1.0
        )

    def copy_to(self, tensor: str, out: torch.Tensor) -> None:
        """Copy its columns of a tensor into that tensor; parts of a sum are added."""
        for each in self.slices:
            if each.tensor == tensor and each.adds:
                self._add(each, out)
            elif each.tensor == tensor:
                source, target = self._columns(each, out)
                target.copy_(source)
                if self.scale != 1.0:
                    target.mul_(1.0 / self.scale)

    def add_to(self, tensor: str, out: torch.Tensor) -> None:
        """Add its columns of a tensor to that tensor."""
        for each in self.slices:
            if each.tensor == tensor:
                self._add(each, out)

    def _add(self, each: ColumnSlice, out: torch.Tensor) -> None:
        source, target = self._columns(each, out)
        target.add_(source, alpha=1.0 / self.scale)

    def _columns(self, each: ColumnSlice, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        source = self.data[:, each.message_column : each.message_column + each.width]
        target = out[slice(*self.rows), each.tensor_column : each.tensor_column + each.width]
        return source, target


class Receiver(_Channel):
    """The receiving end. Receives are posted before the messages are sent."""

    def __init__(
        self,
        common: Channels,
        kind: MessageKind,
        here: ChannelEnd,
        there: ChannelEnd,
        route: Route,
        num_batches: int,
        landing: torch.Tensor | None,
    ) -> None:
        super().__init__(common, kind, here, there, route, num_batches)
        # of another type than messages, a matrix cannot be received into
        self._landing = landing
        self._in_place = landing is not None and landing.dtype == self.dtype
        self._posted: dict[tuple[int, int], tuple[torch.Tensor, Arrival | LocalArrival]] = {}
        self._uploaded: list[Ready | None] = [None] * num_batches  # so the ring can be used again
        if not self._in_place:
            self._make_ring()

    def post(self, batch: int, num_rows: int) -> None:
        """Expect all messages of a batch; empty ones are never sent."""
        rows = self.rows(num_rows)
        uploaded = self._uploaded[batch % self._num_batches]
        if uploaded is not None:
            self._exchange.wait_until(uploaded.query)
        if self._in_place:
            assert self._landing is not None
            blocks = [self._landing[first:last] for first, last in rows]
        else:
            blocks = self._blocks(batch, num_rows)
        for micro_batch, ((first, last), block) in enumerate(zip(rows, blocks, strict=True)):
            if first < last:
                arrival = self._exchange.post(self.kind, self.peer, block)
                self._posted[batch, micro_batch] = (block, arrival)

    def take(self, batch: int, num_rows: int, micro_batch: int) -> Message | None:
        """The message, once it is here; none if the two ranks share no row of the micro-batch."""
        if (batch, micro_batch) not in self._posted:
            return None
        _, arrival = self._posted.pop((batch, micro_batch))
        data = self._device.upload(arrival.wait())
        self._uploaded[batch % self._num_batches] = self._device.uploaded()
        return Message(data, self.slices, self.rows(num_rows)[micro_batch], self.scale)

    def land(self, batch: int, num_rows: int) -> None:
        """Wait until all messages of a batch are in the landing matrix."""
        assert self._landing is not None
        for micro_batch, rows in enumerate(self.rows(num_rows)):
            if (batch, micro_batch) not in self._posted:
                continue
            block, arrival = self._posted.pop((batch, micro_batch))
            data = arrival.wait()
            if not self._in_place or data is not block:  # by reference, from this rank itself
                Message(data, self.slices, rows, self.scale).copy_to(POOLED, self._landing)


def join(
    tensor: str, num_rows: int, width: int, messages: Sequence[Message], like: torch.Tensor
) -> torch.Tensor:
    """A tensor of the type and on the device of `like` from the messages that have parts of it."""
    parts = [message for message in messages if message.has(tensor)]
    if len(parts) == 1 and parts[0].is_all_of(tensor, num_rows, width):
        data = parts[0].data
        return data.detach() if data.dtype == like.dtype else data.to(like.dtype)
    adds = any(each.adds for message in parts for each in message.slices)
    value = (like.new_zeros if adds else like.new_empty)((num_rows, width))
    for message in parts:
        message.copy_to(tensor, value)
    return value
