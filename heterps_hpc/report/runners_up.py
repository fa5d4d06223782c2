"""Plans that were nearly chosen, and how near the chosen one comes to its limits of memory."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_hpc import format as fmt
from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.report.outcome import shape


@dataclass(frozen=True)
class RunnerUpRow:
    """One row of the table of runners-up."""

    what: str
    shape: str
    money: float
    more: float | None  # than the chosen plan, as a fraction of it
    loses: str


@dataclass(frozen=True)
class MemoryRow:
    """One row of the table of memory: bytes of one rank."""

    stage: int
    pool: str
    parts: str
    host: float
    limit: float
    device: float | None
    device_limit: float | None


def runners_up(run: RecordedRun) -> list[RunnerUpRow]:
    """Cheapest first, as the planner wrote them."""
    if run.planning is None:
        return []
    plan = run.layout.plan if run.layout else None
    chosen = plan.estimate.money if plan else 0.0
    rows = []
    for runner in run.planning.runners_up:
        money = runner.plan.estimate.money
        what = f"{runner.what} (not proven best)" if runner.plan.gap_is_bound else runner.what
        more = money / chosen - 1 if chosen > 0 else None
        rows.append(RunnerUpRow(what, shape(runner.plan), money, more, runner.loses))
    return rows


@dataclass(frozen=True)
class TrialRow:
    """One row of the table of trials."""

    what: str
    shape: str
    predicted: float  # samples/s
    tried: float | None
    money: float | None  # of the whole job, as tried
    spent: float
    remark: str


def trials(run: RecordedRun) -> list[TrialRow]:
    """The plans that really ran before the job proper, in the order of their predictions."""
    if run.planning is None:
        return []
    rows = []
    for trial in run.planning.trials:
        rate = trial.samples_per_second
        below = rate is not None and rate < run.planning.floor
        remarks = ["taken"] * trial.taken + ["below the floor"] * below
        remarks += [trial.failed] if trial.failed else []
        predicted = trial.plan.estimate.samples_per_second
        text = ", ".join(remarks)
        rows.append(
            TrialRow(trial.what, shape(trial.plan), predicted, rate, trial.money, trial.spent, text)
        )
    return rows


def stage_memory(run: RecordedRun) -> list[MemoryRow]:
    """Nothing, if the planner's list is of other stages than the layout's."""
    plan = run.layout.plan if run.layout else None
    if run.planning is None or plan is None:
        return []
    stages, uses = plan.stages, run.planning.memory
    if len(stages) != len(uses):
        return []
    rows = []
    for number, (stage, use) in enumerate(zip(stages, uses, strict=True)):
        parts = {
            "tables": use.tables,
            "snapshot": use.snapshot,
            "dense": 0.0 if use.dense_on_device else use.dense,
        }
        listed = ", ".join(f"{name} {fmt.size(part)}" for name, part in parts.items() if part > 0)
        device = use.dense if use.dense_on_device else None
        rows.append(
            MemoryRow(number, stage.pool, listed, use.host, use.limit, device, use.device_limit)
        )
    return rows
