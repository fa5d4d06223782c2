"""What the ranks wrote, read leniently.

A report must open for runs that were killed half-way, by another version, or on a full disk. So
these readers take what is there: a missing field has a default, an unknown one is passed over.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Counts = dict[str, dict[str, float]]  # kind of message → peer rank → bytes or messages


class LenientRecord(BaseModel):
    """Base of the lenient readers."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=True)


class RankRecord(LenientRecord):
    """Where one rank's time and bytes went."""

    rank: int
    role: str = ""
    stage: int = 0
    component: int = 0
    host: str = ""
    device: str = ""  # `cpu`, or an accelerator with its maker's name
    seconds: dict[str, float] = Field(default_factory=dict)
    device_seconds: dict[str, float] = Field(default_factory=dict)  # of the device itself, by phase
    bytes_sent: Counts = Field(default_factory=dict)
    messages_sent: Counts = Field(default_factory=dict)
    bytes_reduced: float = 0.0  # of dense gradients, handed to the allreduce
    reductions: float = 0.0
    tables: dict[str, dict[str, float]] = Field(default_factory=dict)  # table → count → number


class Summary(LenientRecord):
    """Totals of a run that ended."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0  # on the wall, with evaluations and saves between batches
    samples_per_second: float = 0.0  # without them
    skipped_steps: int = 0
    stopped: bool = False
    reducer: str | None = None
    evaluation: dict[str, Any] | None = None
    ranks: tuple[RankRecord, ...] = ()


class FeatureBaseline(LenientRecord):
    """What one feature alone reaches on the test data."""

    feature: str
    auc: float


class Metric(LenientRecord):
    """One line of metrics.jsonl."""

    kind: str
    step: int = 0
    epoch: int = 0
    samples: int = 0
    seconds: float | None = None  # of training, without evaluations and saves
    loss: float | None = None
    samples_per_second: float | None = None
    auc: float | None = None
    log_loss: float | None = None
    normalised_entropy: float | None = None
