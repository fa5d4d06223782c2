"""The transport between ranks: non-blocking messages on buffers that their owners keep.

Messages of one lane between two ranks arrive in the order they were sent, so no micro-batch
numbers travel. A rank's messages to itself are handed over by reference.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from enum import IntEnum

import numpy as np
import torch
from mpi4py import MPI

_SPIN_SECONDS = 2e-4  # a message that is about to come is worth a spin
_NAP_SECONDS = 5e-5  # longer waits leave the core to the reader's thread and to other ranks


class Lane(IntEnum):
    """What a message carries; the MPI tag."""

    ROWS = 1
    ROW_GRADIENTS = 2
    ACTIVATIONS = 3
    ACTIVATION_GRADIENTS = 4


class Arrival:
    """A message that was posted and will come."""

    def __init__(
        self, exchange: Exchange, lane: Lane, peer: int, data: torch.Tensor, request: MPI.Request
    ) -> None:
        self._exchange = exchange
        self._lane = lane
        self._peer = peer
        self._data = data
        self._request = request

    def wait(self) -> torch.Tensor:
        """The data, once it is here."""
        self._exchange.wait_for(self._request, self._lane, self._peer)
        return self._data


class LocalArrival:
    """A message from this rank to itself: the sender's own tensor, not a copy."""

    def __init__(self, queue: deque[torch.Tensor]) -> None:
        self._queue = queue

    def wait(self) -> torch.Tensor:
        """The oldest tensor handed over."""
        return self._queue.popleft()


class Exchange:
    """Sends and receives of one communicator, counted."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        on_wait: Callable[[Lane, int], None] = lambda lane, peer: None,
    ) -> None:
        self._comm = comm
        self._on_wait = on_wait
        self._local: dict[Lane, deque[torch.Tensor]] = {lane: deque() for lane in Lane}
        self._sends: dict[tuple[Lane, int], list[tuple[int, MPI.Request]]] = {}
        self.bytes_sent: Counter[tuple[Lane, int]] = Counter()
        self.messages_sent: Counter[tuple[Lane, int]] = Counter()
        self.seconds_waited: defaultdict[Lane, float] = defaultdict(float)

    def send(self, lane: Lane, peer: int, batch: int, data: torch.Tensor) -> None:
        """Start to send; the owner keeps `data` unchanged until `settle(lane, batch)`."""
        if peer == self._comm.rank:
            self._local[lane].append(data)
            return
        request = self._comm.Isend([_bytes_of(data), MPI.BYTE], peer, int(lane))
        self._sends.setdefault((lane, batch), []).append((peer, request))
        self.bytes_sent[lane, peer] += data.numel() * data.element_size()
        self.messages_sent[lane, peer] += 1

    def settle(self, lane: Lane, batch: int) -> None:
        """Wait until all sends of a batch are done and their buffers free again."""
        for peer, request in self._sends.pop((lane, batch), ()):
            self.wait_for(request, lane, peer)

    def settle_all(self) -> None:
        """Wait until every send is done."""
        for lane, batch in list(self._sends):
            self.settle(lane, batch)

    def post(self, lane: Lane, peer: int, data: torch.Tensor) -> Arrival | LocalArrival:
        """Expect the next message of that lane from that peer in `data`."""
        if peer == self._comm.rank:
            return LocalArrival(self._local[lane])
        request = self._comm.Irecv([_bytes_of(data), MPI.BYTE], peer, int(lane))
        return Arrival(self, lane, peer, data, request)

    def poke(self) -> None:
        """Let MPI move data of messages under way; cheap, called between layers."""
        self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def wait_for(self, request: MPI.Request, lane: Lane, peer: int) -> None:
        """Wait without holding a core for long."""
        if request.Test():
            return
        self._on_wait(lane, peer)
        started = time.perf_counter()
        while not request.Test():
            if time.perf_counter() - started > _SPIN_SECONDS:
                time.sleep(_NAP_SECONDS)
        self.seconds_waited[lane] += time.perf_counter() - started


def _bytes_of(data: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous host tensor, whatever its type."""
    assert data.is_contiguous()
    assert data.device.type == "cpu"
    view: np.ndarray = data.view(-1).view(torch.uint8).numpy() if data.numel() else np.empty(0)
    return view
