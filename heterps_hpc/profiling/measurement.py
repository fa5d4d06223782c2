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
    bytes_sent: Annotated[float, Field(ge=0)] = 0.0  # by a rank to others, per batch
    link: LinkTime | None = None

    @property
    def unattributed_seconds(self) -> float:
        """What is left of a step beside layers, waiting and reducing: paid whatever the layers."""
        elsewhere = (
            Phase.REDUCE,
            Phase.WAIT_INPUTS,
            Phase.WAIT_GRADIENTS,
            Phase.SEND,
            Phase.ASSEMBLE,
        )
        named = sum(self.layer_seconds.values())  # the optimizer's step included
        named += sum(self.phase_seconds.get(name, 0.0) for name in elsewhere)
        return max(0.0, self.step_seconds - named)


class MeasuredLinks(Value):
    """What one start of `measure_links` saw between pools."""

    version: Literal[1] = 1
    links: tuple[Link, ...]
    message_seconds_per_byte: dict[str, Seconds] = Field(default_factory=dict)  # by pool


def message_seconds_per_byte(
    phase_seconds: Mapping[Phase, float] | Mapping[str, float], bytes_sent: float
) -> float:
    """Processor time of a byte: packing and sending as many bytes as were received and joined."""
    seconds = sum(phase_seconds.get(name, 0.0) for name in (Phase.SEND, Phase.ASSEMBLE))
    return seconds / (2 * bytes_sent) if bytes_sent > 0 else 0.0
