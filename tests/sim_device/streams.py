"""Streams, events and late copies. Only copies are queued; kernels run as they are issued, and the
order of both is checked (`order.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tests.sim_device import order
from tests.sim_device.state import (
    NAME,
    NUM_DEVICES,
    device_index,
    settings,
    stats,
    thread,
)

_ALL = float("inf")
_positions = itertools.count(1)
all_streams: list[list[Stream]] = [[] for _ in range(NUM_DEVICES)]
_default: dict[int, Stream] = {}


class Copy:
    """A queued copy between host and device."""

    def __init__(self, target: torch.Tensor, source: torch.Tensor, to_device: bool) -> None:
        self.target, self.source, self.to_device = target, source, to_device
        self.position = next(_positions)
        self.seen = source.clone() if to_device else torch.empty(0)

    def run(self) -> None:
        """The stream has come to this copy: only now is the source read."""
        if self.to_device:
            self.target.copy_(self.source)
        else:
            self.seen = self.source.clone()

    def complete(self) -> None:
        """The host has waited for this copy: only now does a host target change."""
        if not self.to_device:
            self.target.copy_(self.seen)
        elif not _same_bytes(self.source, self.seen):
            stats["hazards"] += 1
            if settings.raise_hazards:
                raise RuntimeError(f"{NAME}: a host buffer changed before its copy was waited for")


class Wait:
    """A queued wait of one stream for another."""

    def __init__(self, streams: Iterable[Stream], until: float) -> None:
        self.streams, self.until = list(streams), until
        self.position = next(_positions)

    def run(self) -> None:
        """The other streams run up to the event."""
        for stream in self.streams:
            stream.run(self.until)

    def complete(self) -> None:
        """The host has waited for this stream, and so for the others."""
        for stream in self.streams:
            stream.complete(self.until)


class Stream:
    """A queue of copies; takes the place of `torch.Stream`."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device_index = device_index(device)
        self.device = torch.device(NAME, self.device_index)
        self.stream_id = next(_positions)
        self.clock: order.Clock = {}
        self._queued: list[Copy | Wait] = []
        self._ran: list[Copy | Wait] = []
        self._outer: list[tuple[int, Stream]] = []
        all_streams[self.device_index].append(self)  # its copies are done even if it is dropped

    def put(self, item: Copy | Wait) -> None:
        """Queue an item."""
        self._queued.append(item)

    def run(self, until: float = _ALL) -> None:
        """Let the device come up to a position."""
        while self._queued and self._queued[0].position <= until:
            self._ran.append(self._queued.pop(0))
            self._ran[-1].run()

    def complete(self, until: float = _ALL) -> None:
        """Let the host wait up to a position."""
        self.run(until)
        while self._ran and self._ran[0].position <= until:
            self._ran.pop(0).complete()

    def unfinished(self, until: float) -> list[int]:
        """Positions of what the host has not waited for."""
        items = self._ran + self._queued
        return [item.position for item in items if item.position <= until]

    def forget(self) -> None:
        """Drop what is queued."""
        self._queued.clear()
        self._ran.clear()

    def synchronize(self) -> None:
        """Wait for all that is queued."""
        self.record_event().synchronize()

    def query(self) -> bool:
        """Whether all that is queued is done."""
        return self.record_event().query()

    def record_event(self, event: Event | None = None) -> Event:
        """An event after all that is queued."""
        event = event or Event(self.device)
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let this stream, not the host, wait for an event."""
        order.merge(self.clock, event.clock)
        late = settings.late
        host_waits("stream_waits", event.streams if late == "sync" else (), event.position)
        if late == "stream":
            self.put(Wait(event.streams, event.position))

    def wait_stream(self, other: Stream) -> None:
        """Let this stream wait for all that is queued in another."""
        self.wait_event(other.record_event())

    def __enter__(self) -> Stream:
        self._outer.append((thread.device, current_stream(self.device)))
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        thread.device, thread.streams[self.device_index] = self._outer.pop()


class Event:
    """A point in a stream; takes the place of `torch.Event`."""

    def __init__(self, device: Any = None, enable_timing: bool = False, **_: object) -> None:
        self.device = device
        self.clock: order.Clock = {}
        self._is_timed = enable_timing
        self.streams: list[Stream] = []
        self.position = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """The point after all that is queued now."""
        self.streams = [stream or current_stream(self.device)]
        self.clock = dict(self.streams[0].clock)
        self.position = next(_positions)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for it."""
        (stream or current_stream(self.device)).wait_event(self)

    def query(self) -> bool:
        """Whether it has passed; each no completes one item, so that polling ends."""
        for stream in self.streams:
            for position in stream.unfinished(self.position)[:1]:
                stream.complete(position)
                return False
        order.host_waited(self.clock)
        return True

    def synchronize(self) -> None:
        """Let the host wait for it."""
        host_waits("sync", self.streams, self.position)
        order.host_waited(self.clock)

    def elapsed_time(self, end: Event) -> float:
        """One simulated microsecond for each kernel or copy of its stream, in milliseconds."""
        for event in (self, end):
            if not event._is_timed:
                raise RuntimeError(f"{NAME}: an event was made without enable_timing")
            if any(stream.unfinished(event.position) for stream in event.streams):
                raise RuntimeError(f"{NAME}: an event has not passed yet")
        stream = self.streams[0].stream_id
        return (end.clock.get(stream, 0) - self.clock.get(stream, 0)) * 1e-3


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread issues to."""
    index = device_index(device)
    if index not in _default:
        _default[index] = Stream(index)
    stream: Stream = thread.streams.get(index) or _default[index]
    return stream


def set_stream(stream: Stream) -> None:
    """Issue to a stream, and to its device."""
    thread.device, thread.streams[stream.device_index] = stream.device_index, stream


def host_waits(counter: str, streams: Iterable[Stream], until: float = _ALL) -> None:
    """Count a wait of the host and complete what it waits for."""
    stats[counter] += 1
    for stream in list(streams):
        stream.complete(until)


def synchronize(device: Any = None) -> None:
    """Wait for all streams of a device."""
    host_waits_for_all("sync", all_streams[device_index(device)])


def blocking_read(index: int) -> None:
    """The host must know a value: it waits for the current stream."""
    streams = all_streams[index] if settings.late == "sync" else [current_stream(index)]
    host_waits_for_all("implicit_sync", streams)


def host_waits_for_all(counter: str, streams: Iterable[Stream]) -> None:
    """The host waits for all that was issued to some streams."""
    host_waits(counter, streams)
    for stream in streams:
        order.host_waited(stream.clock)


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    flat: Callable[[torch.Tensor], torch.Tensor]
    flat = lambda t: t.contiguous().reshape(-1).view(torch.uint8)  # noqa: E731
    return torch.equal(flat(one), flat(other))
