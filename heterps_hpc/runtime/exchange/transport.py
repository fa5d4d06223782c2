"""The transport between ranks: non-blocking messages on buffers that their owners keep.

Messages of one kind between two ranks arrive in the order they were sent, so no micro-batch
numbers travel. A rank's messages to itself are handed over by reference.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from mpi4py import MPI

from heterps_hpc.runtime.device import Ready
from heterps_hpc.runtime.waiting import wait_until


class MessageKind(IntEnum):
    """What a message carries; the MPI tag."""

    ROWS = 1
    ROW_GRADIENTS = 2
    ACTIVATIONS = 3
    ACTIVATION_GRADIENTS = 4

    @property
    def is_forward(self) -> bool:
        """Whether it travels from a route's source to its target, not back."""
        return self in (MessageKind.ROWS, MessageKind.ACTIVATIONS)


class Arrival:
    """A message that was posted and will come."""

    def __init__(
        self,
        exchange: Exchange,
        kind: MessageKind,
        peer: int,
        data: torch.Tensor,
        request: MPI.Request,
    ) -> None:
        self._exchange = exchange
        self._kind = kind
        self._peer = peer
        self._data = data
        self._request = request

    def wait(self) -> torch.Tensor:
        """The data, once it is here."""
        self._exchange.wait_for(self._request, self._kind, self._peer)
        return self._data


class LocalArrival:
    """A message from this rank to itself: the sender's own tensor, not a copy."""

    def __init__(self, exchange: Exchange, queue: deque[tuple[torch.Tensor, Ready | None]]) -> None:
        self._exchange = exchange
        self._queue = queue

    def wait(self) -> torch.Tensor:
        """The oldest tensor handed over, once a device has filled it."""
        data, ready = self._queue.popleft()
        if ready is not None:
            self._exchange.wait_until(ready.query)
        return data


@dataclass(frozen=True)
class _Unsent:
    """A message that waits until a device has filled its buffer."""

    kind: MessageKind
    peer: int
    batch: int
    data: torch.Tensor
    ready: Ready | None


class Exchange:
    """Sends and receives of one communicator, counted."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        on_wait: Callable[[MessageKind, int], None] = lambda kind, peer: None,
        on_moved: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._comm = comm
        self._on_wait = on_wait
        self._on_moved = on_moved
        self._poll_also: Callable[[], None] = lambda: None
        self._local: dict[MessageKind, deque[tuple[torch.Tensor, Ready | None]]] = {
            kind: deque() for kind in MessageKind
        }
        self._unsent: deque[_Unsent] = deque()
        self._sends: dict[tuple[MessageKind, int], list[tuple[int, MPI.Request]]] = {}
        self.bytes_sent: Counter[tuple[MessageKind, int]] = Counter()
        self.messages_sent: Counter[tuple[MessageKind, int]] = Counter()
        self.seconds_waited: defaultdict[MessageKind, float] = defaultdict(float)

    def poll_also(self, work: Callable[[], None]) -> None:
        """Call `work`, which must not wait, whenever messages are polled."""
        self._poll_also = work

    def is_local(self, peer: int) -> bool:
        """Whether a peer is this rank itself."""
        return bool(peer == self._comm.rank)

    def send(
        self,
        kind: MessageKind,
        peer: int,
        batch: int,
        data: torch.Tensor,
        ready: Ready | None = None,
    ) -> None:
        """Start to send; the owner keeps `data` unchanged until `settle(kind, batch)`.

        Where a device still fills `data`, the message leaves once `ready` says so, without
        stopping the host: `poke` and every wait look after it.
        """
        if self.is_local(peer):
            self._local[kind].append((data, ready))
            return
        if ready is None and not self._unsent:
            self._start(kind, peer, batch, data)
        else:
            self._unsent.append(_Unsent(kind, peer, batch, data, ready))

    def _start(self, kind: MessageKind, peer: int, batch: int, data: torch.Tensor) -> None:
        request = self._comm.Isend([_bytes_of(data), MPI.BYTE], peer, int(kind))
        self._sends.setdefault((kind, batch), []).append((peer, request))
        self.bytes_sent[kind, peer] += data.numel() * data.element_size()
        self.messages_sent[kind, peer] += 1

    def _send_ready(self) -> None:
        """Start messages whose buffers are filled, in order: peers count on it."""
        while self._unsent and (self._unsent[0].ready is None or self._unsent[0].ready.query()):
            message = self._unsent.popleft()
            self._start(message.kind, message.peer, message.batch, message.data)

    def settle(self, kind: MessageKind, batch: int) -> None:
        """Wait until all sends of a batch are done and their buffers free again."""
        if any((unsent.kind, unsent.batch) == (kind, batch) for unsent in self._unsent):
            self.wait_until(
                lambda: not any((u.kind, u.batch) == (kind, batch) for u in self._unsent)
            )
        for peer, request in self._sends.pop((kind, batch), ()):
            self.wait_for(request, kind, peer)

    def flush(self) -> None:
        """Wait until every message has left a device and is on its way.

        Before a rank enters anything that looks after no messages, such as a collective: its
        peers may wait for them first.
        """
        if self._unsent:
            self.wait_until(lambda: not self._unsent)

    def settle_all(self) -> None:
        """Wait until every send is done."""
        self.flush()
        for kind, batch in list(self._sends):
            self.settle(kind, batch)

    def post(self, kind: MessageKind, peer: int, data: torch.Tensor) -> Arrival | LocalArrival:
        """Expect the next message of that kind from that peer in `data`."""
        if peer == self._comm.rank:
            return LocalArrival(self, self._local[kind])
        request = self._comm.Irecv([_bytes_of(data), MPI.BYTE], peer, int(kind))
        return Arrival(self, kind, peer, data, request)

    def poke(self) -> None:
        """Let MPI move data of messages in flight; cheap, called between layers."""
        self._send_ready()
        self._poll_also()
        started = time.perf_counter()
        self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        self._on_moved(time.perf_counter() - started)

    def wait_for(self, request: MPI.Request, kind: MessageKind, peer: int) -> None:
        """Wait for a message. MPI moves the data of this and of others when it is looked at: that
        is work of this rank, and not waiting."""
        started = time.perf_counter()
        done = request.Test()
        moving = time.perf_counter() - started
        if not done:
            self._on_wait(kind, peer)
            moving += self.wait_until(request.Test)
            self.seconds_waited[kind] += time.perf_counter() - started
        self._on_moved(moving)

    def wait_until(self, done: Callable[[], bool]) -> float:
        """Wait, and send meanwhile what becomes ready; the seconds of that."""

        def look() -> bool:
            self._send_ready()
            self._poll_also()
            return done()

        return wait_until(look)


def _bytes_of(data: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous host tensor, whatever its type."""
    assert data.is_contiguous()
    assert data.device.type == "cpu"
    view: np.ndarray = data.view(-1).view(torch.uint8).numpy() if data.numel() else np.empty(0)
    return view
