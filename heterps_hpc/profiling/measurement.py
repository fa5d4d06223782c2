"""Measured: what one start of `measure` saw on one pool with k ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from heterps_hpc.cluster import Link
from heterps_hpc.phases import Phase
from heterps_hpc.profile import LayerInfo, TableLoad, TensorInfo
from heterps_hpc.validation import Value

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
    link: LinkTime | None = None

    @property
    def computing_seconds(self) -> float:
        """Of all layers together, the optimizer's step included."""
        return sum(self.layer_seconds.values())

    @property
    def reduce_seconds(self) -> float:
        """Summing gradients: of the rank that came last, which waits for no other."""
        return self.least_phase_seconds.get(Phase.REDUCE, 0.0)

    @property
    def handling_seconds(self) -> float:
        """Processor time of messages."""
        return handling_seconds(self.phase_seconds)

    @property
    def peer_wait_seconds(self) -> float:
        """Waiting for other ranks besides the sum itself, wherever a rank happened to wait."""
        if self.device != "cpu":  # there it is the very time in which layers compute
            return 0.0
        waits = (Phase.WAIT_INPUTS, Phase.WAIT_GRADIENTS, Phase.REDUCE)
        waited = sum(self.phase_seconds.get(name, 0.0) for name in waits)
        return max(0.0, waited - self.reduce_seconds)

    @property
    def unattributed_seconds(self) -> float:
        """What is left of a step besides layers, waiting and reducing: paid whatever the layers.

        A rank alone has nobody to wait for: what it takes from itself is work. Reading is not: the
        next window may be loaded in a measured step or not.
        """
        elsewhere = [Phase.READ]
        if self.num_ranks > 1:
            elsewhere += [Phase.REDUCE, Phase.SEND, Phase.ASSEMBLE]
            if self.device == "cpu":  # on a device it is the very time in which layers compute
                elsewhere += [Phase.WAIT_INPUTS, Phase.WAIT_GRADIENTS]
        named = self.computing_seconds + self.creating_seconds
        named += sum(self.phase_seconds.get(name, 0.0) for name in elsewhere)
        return max(0.0, self.step_seconds - named)


class MeasuredLinks(Value):
    """What one start of `runtime.measure.links` saw between pools."""

    version: Literal[1] = 1
    links: tuple[Link, ...]
    cut_seconds_per_byte: dict[str, Seconds] = Field(default_factory=dict)  # by pool
    tables_batch_seconds: dict[str, Seconds] = Field(default_factory=dict)  # by pool that had them


def handling_seconds(phase_seconds: Mapping[Phase, float] | Mapping[str, float]) -> float:
    """Processor time of messages: packing and sending, and joining as many that came."""
    return sum(phase_seconds.get(name, 0.0) for name in (Phase.SEND, Phase.ASSEMBLE))


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
