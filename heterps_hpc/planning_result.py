"""What planning decided and considered: written by `heterps plan`, read by it and by the report.

A report must open for runs that another version planned, so what a file lacks has a default, and
keys that are not known here are passed over.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from heterps_hpc.layout import Plan
from heterps_hpc.validation import Value


class _Saved(Value):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def together(asked: str) -> str:
    """Whose a plan is that a learned scheduler made of one that exact could not prove the best."""
    return f"{asked} and exact"


class CurvePoint(_Saved):
    """One improvement of the scheduler that decided."""

    seconds: float
    placements: int = 0
    money: float


class MemoryUse(_Saved):
    """Bytes that one rank of a stage needs, in the host's memory unless said otherwise."""

    tables: float = 0.0
    snapshot: float = 0.0  # copies of rows that change while a checkpoint is written
    dense: float = 0.0  # weights, optimizer state, activations
    dense_on_device: bool = False
    limit: float
    device_limit: float | None = None  # None: no device, or unknown

    @property
    def host(self) -> float:
        """Bytes of host memory."""
        return self.tables + self.snapshot + (0.0 if self.dense_on_device else self.dense)


class RunnerUp(_Saved):
    """A plan that was not taken, and why."""

    what: str
    plan: Plan
    loses: str = ""


class Trial(_Saved):
    """A plan that really ran for a short time before the job proper."""

    what: str
    plan: Plan
    samples_per_second: float | None = None  # None: it failed
    failed: str = ""  # why
    seconds: float = 0.0  # that its nodes were allocated
    spent: float = 0.0  # $ for them
    taken: bool = False

    @property
    def money(self) -> float | None:
        """$ of the whole job at the throughput that was seen."""
        if not self.samples_per_second:
            return None
        estimate = self.plan.estimate
        return estimate.money * estimate.samples_per_second / self.samples_per_second


class PlanningResult(_Saved):
    """The plan, the plans of other schedulers, how it was found, and what other floors cost."""

    version: int = 1
    plan: Plan
    outcome: tuple[str, ...] = ()  # what a reader needs first, in sentences
    memory: tuple[MemoryUse, ...] = ()  # of one rank, by stage of the plan
    alternatives: tuple[Plan, ...] = ()
    runners_up: tuple[RunnerUp, ...] = ()
    trials: tuple[Trial, ...] = ()  # plans that really ran before one of them was taken
    needed_pools: tuple[str, ...] = ()  # without each of these there is no plan
    undecided_pools: tuple[str, ...] = ()  # without each of these none was found in time
    frontier: tuple[Plan, ...] = ()
    asked: str | None = None  # the scheduler that was asked to decide
    own_plan: Plan | None = None  # what it found by itself; the plan may be another's, if cheaper
    learning_curve: tuple[CurvePoint, ...] = ()  # of the asked scheduler, as the next two
    floor: float = 0.0  # samples per second that the goal needs; 0 = none
    limits: tuple[str, ...] = ()  # of speed, as the job has them, in words
    max_money: float | None = None  # $, if the goal has a budget
    best: float | None = None  # samples per second of the fastest plan, if it was needed
    best_is_found: bool = False  # `best` is the fastest plan found: a faster one was not ruled out
    best_at_most: float | None = None  # what is proven of the fastest plan then
    epochs: int | None = None  # if the job counts them
    num_placements: int = 0
    scheduler_seconds: float = 0.0
    estimated_pools: tuple[str, ...] = ()
    extrapolated: tuple[str, ...] = ()  # stages with more ranks than were measured, in words
    remarks: tuple[str, ...] = ()  # what looks unusual in the question, in words
    without_plan: tuple[str, ...] = ()  # simple rules that found no plan
    why_no_plan: dict[str, str] = Field(default_factory=dict)  # of them, by name
