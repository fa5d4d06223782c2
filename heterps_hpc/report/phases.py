"""Where the time of every rank went, and how stages compare with their prediction."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from heterps_hpc import format as fmt
from heterps_hpc.phases import OUTSIDE_TRAINING
from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.report.records import RankRecord

OTHER = "other"
# compute in blues and greens, moving in warm colours, waiting in greys: they differ at a glance
COLOURS = {
    "forward": "#5b8ff9",
    "backward": "#2f5fd0",
    "assemble": "#86b6f7",
    "update": "#7352c7",
    "clip": "#a48be0",
    "reduce": "#d6518f",
    "pull": "#27a38a",
    "push": "#157a63",
    "send": "#f2a33a",
    "transfer": "#e0703a",
    "read": "#c98b2b",
    "evaluate": "#4bb4d6",
    "save": "#b4664f",
    # waiting is never the brightest: these colours are the page's own, in light and in dark
    "wait inputs": "var(--wait)",
    "wait gradients": "var(--wait-more)",
    OTHER: "var(--line)",
}
_SPARE = ("#8a6d3b", "#6b8e23", "#b05aa8", "#3a8fb7", "#a0522d", "#7f8c3d")


def colour(phase: str) -> str:
    """One colour per phase, the same in every chart and every report."""
    if phase in COLOURS:
        return COLOURS[phase]
    if is_wait(phase):
        return "var(--wait)"
    return _SPARE[sum(phase.encode()) % len(_SPARE)]


def is_wait(phase: str) -> bool:
    """Whether a rank was idle in that phase."""
    return phase.startswith("wait") or phase == OTHER


def training_seconds(rank: RankRecord) -> float:
    """Seconds in which a rank, or its device, worked on batches: what the plan predicts."""
    on_host = sum(
        seconds
        for phase, seconds in rank.seconds.items()
        if not is_wait(phase) and phase not in OUTSIDE_TRAINING
    )
    return max(on_host, sum(rank.device_seconds.values()))  # at once, not one after the other


@dataclass(frozen=True)
class RankTime:
    """One bar of the chart: phases in the legend's order."""

    rank: int
    role: str
    stage: int
    host: str
    pool: str
    seconds: dict[str, float]
    total: float
    device: str = ""
    device_seconds: float = 0.0  # of the device itself, while the host did all this

    @property
    def device_busy(self) -> str:
        """A rank's accelerator and the share of the time in which it computed, if it has one."""
        if self.device in ("", "cpu"):
            return ""
        share = self.device_seconds / self.total if self.total else 0.0
        return f"{self.device}: {fmt.percent(share, 0)} busy"

    @property
    def busy(self) -> float:
        """Share of the time in which the rank worked."""
        worked = sum(value for phase, value in self.seconds.items() if not is_wait(phase))
        return worked / self.total if self.total else 0.0


def rank_times(run: RecordedRun) -> list[RankTime]:
    """Bars by rank; time that no phase claims is `other`."""
    if run.summary is None:
        return []
    pools = [component.pool for component in run.layout.components] if run.layout else []
    bars = []
    for rank in run.summary.ranks:
        known = {phase: value for phase, value in rank.seconds.items() if value > 0}
        total = max(sum(known.values()), run.summary.seconds)
        rest = total - sum(known.values())
        if rest > 0.005 * total:
            known[OTHER] = known.get(OTHER, 0.0) + rest
        ordered = {phase: known[phase] for phase in _ordered(known)}
        pool = pools[rank.component] if 0 <= rank.component < len(pools) else ""
        on_device = sum(rank.device_seconds.values())
        bars.append(
            RankTime(
                rank.rank,
                rank.role,
                rank.stage,
                rank.host,
                pool,
                ordered,
                total,
                rank.device,
                on_device,
            )
        )
    return bars


def legend(bars: list[RankTime]) -> list[str]:
    """Every phase that occurs, in one order."""
    return _ordered({phase: 0.0 for bar in bars for phase in bar.seconds})


def _ordered(phases: dict[str, float]) -> list[str]:
    """Work before waiting, known phases before others, `other` last."""
    order = list(COLOURS)

    def key(phase: str) -> tuple[int, int, str]:
        known = order.index(phase) if phase in order else len(order)
        group = 2 if phase == OTHER else int(is_wait(phase))
        return group, known, phase

    return sorted(phases, key=key)


@dataclass(frozen=True)
class StageTime:
    """One stage: seconds of a batch, predicted and measured."""

    stage: int
    pool: str
    num_ranks: int
    predicted: float | None
    predicted_compute: float | None
    predicted_move: float | None
    measured: float | None  # work of its busiest rank, waits left out
    binds: bool

    @property
    def error(self) -> float | None:
        """(measured − predicted) / predicted."""
        if not self.predicted or self.measured is None:
            return None
        return self.measured / self.predicted - 1


def stage_times(run: RecordedRun) -> list[StageTime]:
    """Stages in order, as far as they are known."""
    if run.layout is None:
        return []
    plan = run.layout.plan
    estimates = plan.estimate.stages if plan else ()
    worked: dict[int, float] = defaultdict(float)
    steps = run.summary.steps if run.summary else 0
    for rank in run.summary.ranks if run.summary and steps else ():
        worked[rank.stage] = max(worked[rank.stage], training_seconds(rank) / steps)
    rows = []
    for index, stage in enumerate(run.layout.stages):
        estimate = estimates[index] if index < len(estimates) else None
        rows.append(
            StageTime(
                index,
                stage.pool,
                stage.num_ranks,
                estimate.seconds if estimate else None,
                estimate.compute_seconds if estimate else None,
                estimate.move_seconds if estimate else None,
                worked.get(index),
                bool(plan and plan.estimate.binding_stage == index),
            )
        )
    return rows
