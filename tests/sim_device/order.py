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


@dataclass
class Uses:
    """Who wrote a block of memory last, and who has read it since."""

    home: int  # the stream that was current when it was allocated: its memory returns there
    home_clock: Clock
    writer: tuple[int, int] | None = None  # stream and number
    readers: Clock = field(default_factory=dict)
    recorded: set[int] = field(default_factory=set)  # streams given to `record_stream`

    def touch(self, stream: int, clock: Clock, *, writes: bool, what: object) -> None:
        """The newest work of a stream reads or writes the memory."""
        if self.writer is not None and not _knows(clock, *self.writer):
            _hazard(f"{what} uses memory that another stream writes, without a wait")
        if not writes:
            self.readers[stream] = clock[stream]
            return
        if not all(_knows(clock, *reader) for reader in self.readers.items()):
            _hazard(f"{what} writes memory that another stream reads, without a wait")
        self.writer = (stream, clock[stream])
        self.readers.clear()

    def freed(self) -> None:
        """The last tensor on it is gone: its stream may use the memory for something else."""
        merge(self.home_clock, _done)
        users = [*self.readers.items(), *([self.writer] if self.writer else [])]
        if any(s not in self.recorded and not _knows(self.home_clock, s, n) for s, n in users):
            # nothing can be raised here: the next operator does
            thread.hazard = "memory is given back while another stream uses it: no record_stream"


def raise_earlier() -> None:
    """Raise what was found where nothing could be raised."""
    found, thread.hazard = thread.hazard, None
    if found is not None:
        _hazard(found)


def _knows(clock: Clock, stream: int, number: int) -> bool:
    return clock.get(stream, 0) >= number


def _hazard(text: str) -> None:
    if settings.check_order:
        stats["hazards"] += 1
        if settings.raise_hazards:
            raise RuntimeError(f"{NAME}: {text}")
