"""What the ranks and the planner wrote, read with forgiveness.

A report must open for runs that were killed half-way, by another version, or on a full disk. So
these readers take what is there: a missing field has a default, an unknown one is passed over.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from heterps_hpc.layout import Plan

Counts = dict[str, dict[str, float]]  # lane → peer rank → bytes or messages


class Record(BaseModel):
    """Base of the forgiving readers."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=True)


class RankRecord(Record):
    """Where one rank's time and bytes went."""

    rank: int
    role: str = ""
    stage: int = 0
    component: int = 0
    host: str = ""
    seconds: dict[str, float] = Field(default_factory=dict)
    bytes_sent: Counts = Field(default_factory=dict)
    messages_sent: Counts = Field(default_factory=dict)
    tables: dict[str, dict[str, float]] = Field(default_factory=dict)  # table → count → number


class Summary(Record):
    """Totals of a run that ended."""

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    samples_per_second: float = 0.0
    skipped_steps: int = 0
    stopped: bool = False
    reducer: str | None = None
    evaluation: dict[str, Any] | None = None
    ranks: tuple[RankRecord, ...] = ()


class Metric(Record):
    """One line of metrics.jsonl."""

    kind: str
    step: int = 0
    epoch: int = 0
    samples: int = 0
    seconds: float | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    auc: float | None = None
    log_loss: float | None = None
    normalised_entropy: float | None = None


class LearningPoint(Record):
    """One improvement of the scheduler that decided."""

    seconds: float
    placements: int = 0
    money: float


class RunnerUpRecord(Record):
    """A plan that was nearly chosen, and why it was not."""

    what: str
    plan: Plan
    loses: str = ""


class MemoryRecord(Record):
    """Bytes that one rank of a stage was counted to need."""

    tables: float = 0.0
    snapshot: float = 0.0
    dense: float = 0.0
    dense_on_device: bool = False
    limit: float
    device_limit: float | None = None

    @property
    def host(self) -> float:
        """Bytes of the host's memory."""
        return self.tables + self.snapshot + (0.0 if self.dense_on_device else self.dense)


class Planning(Record):
    """What the planner considered."""

    floor: float | None = None
    best: float | None = None
    num_placements: int | None = None
    scheduler_seconds: float | None = None
    estimated_pools: tuple[str, ...] = ()
    memory: tuple[MemoryRecord, ...] = ()  # of one rank, by stage of the plan
    alternatives: tuple[Plan, ...] = ()
    runners_up: tuple[RunnerUpRecord, ...] = ()
    without_plan: tuple[str, ...] = ()
    frontier: tuple[Plan, ...] = ()
    learning_curve: tuple[LearningPoint, ...] = ()
