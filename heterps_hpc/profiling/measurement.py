"""Measured: what one start of `measure` saw on one pool with k ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from heterps_hpc.cluster import Link
from heterps_hpc.phases import Phase
from heterps_hpc.profile import LayerInfo, TableLoad, TensorInfo
from heterps_hpc.validation import Value

HANDLING = (Phase.SEND, Phase.TRANSFER, Phase.ASSEMBLE)
WAITING = (Phase.WAIT_INPUTS, Phase.WAIT_GRADIENTS)
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]


class LinkTime(Value):
    """Latency and bandwidth between two ranks."""

    latency_seconds: Annotated[float, Field(gt=0)]
    bytes_per_second: Annotated[float, Field(gt=0)]


class Measured(Value):
    """Seconds per batch of every layer and phase, with k ranks in one stage."""

    model_config = ConfigDict(protected_namespaces=())

    version: Literal[1] = 1
    pool: str
    device: str = "cpu"  # whose seconds those of dense layers are
    num_ranks: Positive
    node_ranks: Positive = 1  # that were at work on the node, in further groups of k
    batch_size: Positive
    micro_batches: Positive
    model: str
    model_fingerprint: str
    layers: tuple[LayerInfo, ...]
    tensors: tuple[TensorInfo, ...]
    tables: tuple[TableLoad, ...]
    layer_seconds: dict[str, Seconds]
    phase_seconds: dict[str, Seconds]
    least_phase_seconds: dict[str, Seconds]  # of the rank that waited least
    step_seconds: Seconds
    window_rows: Annotated[int, Field(ge=0)] = 0  # samples that a rank loads at once
    window_seconds: Seconds = 0.0  # what loading their keys takes
    new_row_seconds: Seconds = 0.0  # of a row that is created
    creating_seconds: Seconds = 0.0  # of the rows that a batch created: no part of layer_seconds
    bytes_sent: Annotated[float, Field(ge=0)] = 0.0  # by a rank to others, per batch
    messages_sent: Annotated[float, Field(ge=0)] = 0.0
    stretch: Annotated[float, Field(ge=1)] = 1.0  # seconds that passed per second of processor time
    link: LinkTime | None = None

    @property
    def computing_seconds(self) -> float:
        """Of all layers together, the optimizer's step included."""
        return sum(self.layer_seconds.values())

    @property
    def reduce_seconds(self) -> float:
        """Summing gradients: of the rank that came last, which waits for no other.

        Rows' gradients are on the same links meanwhile, and a rank waits for whichever of both it
        asks for first: so their part is taken off the waits for both together.
        """
        waited = (self.least_phase_seconds.get(name, 0.0) for name in (Phase.REDUCE, *WAITING))
        return max(0.0, sum(waited) - self.exchange_seconds)

    @property
    def exchange_seconds(self) -> float:
        """What the link needs for the gradients of rows: half of what is sent."""
        return 0.0 if self.link is None else self.bytes_sent / 2 / self.link.bytes_per_second

    @property
    def handling_seconds(self) -> float:
        """Processor time of messages."""
        return handling_seconds(self.phase_seconds)

    def as_if_busy(self, stretch: float) -> Measured:
        """The times of a rank that never waits, if such a one takes `stretch`.

        Where the processor is taken away by a CPU quota, a rank that waits uses less of it than its
        quota and computes at full speed in between, which one that is always busy cannot.
        """
        waits = {name: self.phase_seconds.get(name, 0.0) for name in WAITING}
        waited, worked = sum(waits.values()), self.computing_seconds + self.handling_seconds
        # it used no more than its quota in the step as it was, so work fits into the step
        more = min(stretch / self.stretch, 1 + waited / max(worked, 1e-12))
        if more <= 1 or self.device != "cpu":
            return self
        layers = {name: more * seconds for name, seconds in self.layer_seconds.items()}
        handling = {name: more * self.phase_seconds.get(name, 0.0) for name in HANDLING}
        left = max(0.0, 1 - (more - 1) * worked / waited)
        waits = {name: left * seconds for name, seconds in waits.items()}
        phases = {str(name): seconds for name, seconds in (handling | waits).items()}
        return self.model_copy(
            update={"layer_seconds": layers, "phase_seconds": self.phase_seconds | phases}
        )

    def with_computing(self, seconds: float) -> Measured:
        """The same with all layers scaled, so that they take so long together."""
        more = seconds / max(self.computing_seconds, 1e-12)
        layers = {name: more * own for name, own in self.layer_seconds.items()}
        return self.model_copy(update={"layer_seconds": layers})

    @property
    def unattributed_seconds(self) -> float:
        """What is left of a step besides layers, waiting and reducing: paid whatever the layers.

        A rank alone has nobody to wait for: what it takes from itself is work. Reading is not: the
        next window may be loaded in a measured step or not.
        """
        elsewhere = [Phase.READ]
        if self.num_ranks > 1:
            elsewhere += [Phase.REDUCE, *HANDLING]
            if self.device == "cpu":  # on a device it is the very time in which layers compute
                elsewhere += WAITING
        named = self.computing_seconds + self.creating_seconds
        named += sum(self.phase_seconds.get(name, 0.0) for name in elsewhere)
        return max(0.0, self.step_seconds - named)


class MeasuredLinks(Value):
    """What one start of `runtime.measure.links` saw between pools."""

    version: Literal[1] = 1
    links: tuple[Link, ...]
    cut_seconds_per_byte: dict[str, Seconds] = Field(default_factory=dict)  # by pool
    tables_batch_seconds: dict[str, Seconds] = Field(default_factory=dict)  # by pool that had them
    stretch: dict[str, Seconds] = Field(default_factory=dict)  # by pool


def handling_seconds(phase_seconds: Mapping[Phase, float] | Mapping[str, float]) -> float:
    """Processor time of messages: packing, moving and joining as many as were sent."""
    return sum(phase_seconds.get(name, 0.0) for name in HANDLING)


class Tried(Value):
    """What one trial of a layout saw, after its start."""

    version: Literal[1] = 1
    steps: Positive
    samples: Positive
    seconds: Annotated[float, Field(gt=0)]

    @property
    def samples_per_second(self) -> float:
        """Throughput."""
        return self.samples / self.seconds
