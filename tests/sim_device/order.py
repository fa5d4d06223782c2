"""Which work of the device is known to come after which: it finds missing waits between streams.

Kernels run as they are issued. On a device they are late, and what two streams do to the same
memory has an order only where one waits for the other, or the host for either. So all work is
counted, by stream; events carry what their stream has waited for; and work that touches memory
before it may is refused, as is memory that is given back while another stream may still use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim_device.state import NAME, settings, stats, thread

Clock = dict[int, int]  # by stream: how much of its work is known to be done

_done: Clock = {}  # what the host has waited for: all that is issued from now on comes after it


def merge(clock: Clock, other: Clock) -> None:
    """Learn what another clock knows."""
    for stream, count in other.items():
        if count > clock.get(stream, 0):
            clock[stream] = count


def host_waited(clock: Clock) -> None:
    """The host knows that this is done."""
    merge(_done, clock)


def issue(stream: int, clock: Clock) -> int:
    """Another piece of work of a stream; returns its number."""
    merge(clock, _done)
    clock[stream] = clock.get(stream, 0) + 1
    return clock[stream]


Span = tuple[int, int]  # first byte in a block, and the one after the last


@dataclass
class Uses:
    """Who wrote the parts of a block of memory last, and who has read them since."""

    home: int  # the stream that was current when it was allocated: its memory returns there
    home_clock: Clock
    writers: dict[Span, tuple[int, int]] = field(default_factory=dict)  # stream and number
    readers: dict[tuple[Span, int], int] = field(default_factory=dict)  # number, by stream
    recorded: set[int] = field(default_factory=set)  # streams given to `record_stream`

    def touch(self, span: Span, stream: int, clock: Clock, *, writes: bool, what: object) -> None:
        """The newest work of a stream reads or writes a part of the memory."""
        for other, writer in self.writers.items():
            if _overlap(span, other) and not _knows(clock, *writer):
                _hazard(f"{what} uses memory that another stream writes, without a wait")
        if not writes:
            self.readers[span, stream] = clock[stream]
            return
        for (other, reader), number in self.readers.items():
            if _overlap(span, other) and not _knows(clock, reader, number):
                _hazard(f"{what} writes memory that another stream reads, without a wait")
        self.wrote(span, stream, clock)

    def wrote(self, span: Span, stream: int, clock: Clock) -> None:
        """What was known of a part is of no interest any more."""
        self.writers = {s: w for s, w in self.writers.items() if not _contains(span, s)}
        self.readers = {r: n for r, n in self.readers.items() if not _contains(span, r[0])}
        self.writers[span] = (stream, clock[stream])

    def freed(self) -> None:
        """The last tensor on it is gone: its stream may use the memory for something else."""
        merge(self.home_clock, _done)
        users = [(stream, number) for (_, stream), number in self.readers.items()]
        users += self.writers.values()
        if any(s not in self.recorded and not _knows(self.home_clock, s, n) for s, n in users):
            # nothing can be raised here: the next operator does
            thread.hazard = "memory is given back while another stream uses it: no record_stream"


def raise_earlier() -> None:
    """Raise what was found where nothing could be raised."""
    found, thread.hazard = thread.hazard, None
    if found is not None:
        _hazard(found)


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _contains(outer: Span, inner: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _knows(clock: Clock, stream: int, number: int) -> bool:
    return clock.get(stream, 0) >= number


def _hazard(text: str) -> None:
    if settings.check_order:
        stats["hazards"] += 1
        if settings.raise_hazards:
            raise RuntimeError(f"{NAME}: {text}")
