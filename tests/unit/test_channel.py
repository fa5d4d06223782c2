"""Both ends of a channel against each other, through an exchange that stays in this process."""

from __future__ import annotations

import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heterps_hpc.config import TrainSpec
from heterps_hpc.runtime.device import Device
from heterps_hpc.runtime.exchange.channel import POOLED, Channels, Receiver, Sender, join, make_wire
from heterps_hpc.runtime.exchange.routes import (
    ChannelEnd,
    ColumnSlice,
    Route,
    join_neighbours,
    message_rows,
)
from heterps_hpc.runtime.exchange.transport import Exchange, MessageKind

HOLDER = ChannelEnd(0, has_whole_batch=True)
CPU = Device(torch.device("cpu"))


class Loopback:
    """Delivers what was sent to the next receive of that kind, as a network would: by copy."""

    def __init__(self, local: bool = False) -> None:
        self.sent: dict[MessageKind, deque[torch.Tensor]] = {kind: deque() for kind in MessageKind}
        self.local = local

    def is_local(self, peer: int) -> bool:
        return self.local

    def send(
        self, kind: MessageKind, peer: int, batch: int, data: torch.Tensor, *_: object
    ) -> None:
        assert self.local or data.is_contiguous()
        self.sent[kind].append(data)

    def post(self, kind: MessageKind, peer: int, block: torch.Tensor) -> Any:
        exchange = self

        class Arrival:
            def wait(self) -> torch.Tensor:
                data = exchange.sent[kind].popleft()
                return data if exchange.local else block.copy_(data)

        return Arrival()


def channels(exchange: Loopback, **train: Any) -> Channels:
    spec = TrainSpec(**{"batch_size": 12, "micro_batches": 2, **train})
    return Channels(exchange, spec, CPU)  # type: ignore[arg-type]


def rows_route(*slices: ColumnSlice, target: ChannelEnd | None = None) -> Route:
    target = target or ChannelEnd(1, num_replicas=2, replica=1)
    return Route(HOLDER, target, slices, sum(each.width for each in slices))


def ends(kind: MessageKind, route: Route, exchange: Loopback, **train: Any) -> tuple[Any, Any]:
    made = channels(exchange, **train)
    landing = None if kind.is_forward else torch.zeros(12, route.width)
    return made.sender(kind, route, 2), made.receiver(kind, route, 2, landing)


TWO = (ColumnSlice("a", 2, 0, 3), ColumnSlice("b", 0, 3, 2))


def test_rows_of_two_replicas_and_of_tables() -> None:
    half = [ChannelEnd(rank, 2, rank) for rank in range(2)]
    assert message_rows(HOLDER, half[1], 12, 2) == [(3, 6), (9, 12)]  # within the batch
    assert message_rows(half[1], HOLDER, 12, 2) == [(0, 3), (0, 3)]  # within the micro-batch
    third = ChannelEnd(5, num_replicas=3, replica=1)
    assert message_rows(half[0], third, 12, 2) == [(2, 3), (2, 3)]
    assert message_rows(third, half[0], 12, 2) == [(0, 1), (0, 1)]
    assert message_rows(half[0], ChannelEnd(6, 3, 2), 12, 2) == [
        (4, 4),
        (4, 4),
    ]  # nothing in common


def test_neighbouring_slices_are_one() -> None:
    slices = [ColumnSlice("a", 0, 0, 2), ColumnSlice("a", 2, 2, 3), ColumnSlice("b", 0, 5, 1)]
    joined = join_neighbours(slices)
    assert joined == (ColumnSlice("a", 0, 0, 5), ColumnSlice("b", 0, 5, 1))
    assert len(join_neighbours([ColumnSlice("a", 0, 0, 2), ColumnSlice("a", 2, 2, 3, True)])) == 2


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("local", [False, True])
def test_rows_arrive_in_the_columns_of_their_tensors(wire: str, local: bool) -> None:
    sender, receiver = ends(MessageKind.ROWS, rows_route(*TWO), Loopback(local), wire=wire)
    matrix = torch.arange(60.0).view(12, 5)
    receiver.post(0, 12)
    for micro_batch in range(2):
        sender.send(0, 12, micro_batch, {POOLED: matrix})
    for micro_batch in range(2):
        message = receiver.take(0, 12, micro_batch)
        mine = matrix[3 + 6 * micro_batch : 6 + 6 * micro_batch]
        a = torch.full((3, 6), -1.0)
        message.copy_to("a", a)
        assert torch.equal(a[:, 2:5], mine[:, :3])
        assert (a[:, [0, 1, 5]] == -1).all()
        assert torch.equal(join("b", 3, 2, [message], a), mine[:, 3:])


@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("local", [False, True])
def test_gradients_land_in_the_matrix_of_the_batch(wire: str, local: bool) -> None:
    route = rows_route(*TWO)
    made = channels(Loopback(local), wire=wire, batch_size=4096)
    landing = torch.full((4096, 5), 7.0)
    sender = made.sender(MessageKind.ROW_GRADIENTS, route, 2)
    receiver = made.receiver(MessageKind.ROW_GRADIENTS, route, 1, landing)
    receiver.post(3, 4096)
    tiny = 2.0**-20  # a subnormal number of float16, were it not scaled
    values = torch.arange(1024.0)[:, None].fmod(8) * tiny * torch.ones(1024, 5)
    for micro_batch in range(2):
        a = torch.cat([torch.zeros(1024, 2), values[:, :3] + micro_batch * tiny], dim=1)
        sender.send(3, 4096, micro_batch, {"a": a, "b": values[:, 3:] * 3})
    receiver.land(3, 4096)
    for micro_batch in range(2):
        first = 1024 + 2048 * micro_batch
        assert torch.equal(landing[first : first + 1024, :3], values[:, :3] + micro_batch * tiny)
        assert torch.equal(landing[first : first + 1024, 3:], values[:, 3:] * 3)
    assert (landing[:1024] == 7).all()  # another replica's rows


def test_a_tensor_that_is_the_message_is_not_copied() -> None:
    exchange = Loopback()
    sender, receiver = ends(MessageKind.ROWS, rows_route(ColumnSlice("a", 0, 0, 5)), exchange)
    matrix = torch.randn(12, 5)
    receiver.post(0, 12)
    sender.send(0, 12, 0, {POOLED: matrix})
    sent = exchange.sent[MessageKind.ROWS][0]
    assert sent.data_ptr() == matrix[3:].data_ptr()
    message = receiver.take(0, 12, 0)
    assert join("a", 3, 5, [message], matrix).data_ptr() == message.data.data_ptr()


def test_partial_sums_are_added() -> None:
    part = ColumnSlice("a", 0, 0, 2, adds=True)
    messages = []
    for value in (1.0, 10.0):
        sender, receiver = ends(MessageKind.ROWS, rows_route(part), Loopback())
        receiver.post(0, 12)
        sender.send(0, 12, 0, {POOLED: torch.full((12, 2), value)})
        messages.append(receiver.take(0, 12, 0))
    assert torch.equal(join("a", 3, 2, messages, torch.empty(0)), torch.full((3, 2), 11.0))


def test_ranks_that_share_no_row_exchange_no_message() -> None:
    route = Route(ChannelEnd(0, 2, 0), ChannelEnd(1, 3, 2), (ColumnSlice("a", 0, 0, 2),), 2)
    exchange = Loopback()
    sender, receiver = ends(MessageKind.ACTIVATIONS, route, exchange)
    receiver.post(0, 12)
    sender.send(0, 12, 0, {"a": torch.ones(3, 2)})
    assert not exchange.sent[MessageKind.ACTIVATIONS]
    assert receiver.take(0, 12, 0) is None


def test_a_scaled_type_in_memory_is_refused() -> None:
    """Sending memory as it is skips the scale: right only while float16 is a type of messages."""
    spec = rows_route(ColumnSlice("a", 0, 0, 2))
    sender, _ = ends(MessageKind.ROW_GRADIENTS, spec, Loopback(), wire="float16")
    assert make_wire(TrainSpec(batch_size=12, wire="float16")).gradient_scale == 8.0
    with pytest.raises(AssertionError, match=r"float16 in memory needs gradients scaled by 8"):
        sender.send(0, 12, 0, {"a": torch.ones(3, 2, dtype=torch.float16)})


def test_ends_are_what_they_are_called() -> None:
    sender, receiver = ends(MessageKind.ROWS, rows_route(*TWO), Loopback())
    assert isinstance(sender, Sender)
    assert isinstance(receiver, Receiver)
    assert (sender.peer, receiver.peer) == (1, 0)


def test_what_mpi_moves_between_layers_is_moving_and_no_computing() -> None:
    moved: list[float] = []
    comm: Any = SimpleNamespace(rank=0, Iprobe=lambda *_: time.sleep(0.02))
    Exchange(comm, on_moved=moved.append).poke()
    assert len(moved) == 1
    assert moved[0] >= 0.02
