"""Some batches as they happened: one row per rank, one bar per phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heterps_hpc import format as fmt
from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.report.phases import colour, is_wait

WIDTH = 1000.0
LABEL = 92.0
ROW = 22.0
_STEPS_SHOWN = 3
_RANKS_SHOWN = 24
_BARS_SHOWN = 4000


@dataclass(frozen=True)
class Bar:
    """One phase of one rank."""

    x: float
    y: float
    width: float
    colour: str
    is_wait: bool
    tooltip: str


@dataclass(frozen=True)
class Timeline:
    """What the template draws."""

    width: float
    height: float
    rows: list[tuple[float, str]]  # y, rank
    bars: list[Bar]
    ticks: list[tuple[float, str]]  # x, text
    phases: list[tuple[str, str]]  # colour, phase
    steps: str
    hidden_ranks: int
    several_hosts: bool


def draw(run: RecordedRun) -> Timeline | None:
    """The middle steps of the trace; None without one."""
    events = [event for event in run.trace if _is_usable(event)]
    if not events:
        return None
    numbers = sorted({_step(event) for event in events})
    first = max(0, (len(numbers) - _STEPS_SHOWN) // 2)
    steps = numbers[first : first + _STEPS_SHOWN]
    all_ranks = sorted({int(event["pid"]) for event in events})
    ranks = all_ranks[:_RANKS_SHOWN]
    shown = [e for e in events if _step(e) in steps and int(e["pid"]) in ranks]
    # long ones first: inner phases are drawn over the outer phase that holds them
    shown = sorted(shown, key=lambda event: -float(event["dur"]))[:_BARS_SHOWN]
    begin = min(float(event["ts"]) for event in shown)
    end = max(float(event["ts"]) + float(event["dur"]) for event in shown)
    scale = (WIDTH - LABEL) / max(end - begin, 1e-9)
    rows = {rank: 6 + index * ROW for index, rank in enumerate(ranks)}
    bars = [_bar(event, rows[int(event["pid"])], begin, scale) for event in shown]
    names = sorted({str(e["name"]) for e in shown}, key=lambda name: (is_wait(name), name))
    height = 6 + len(ranks) * ROW
    hosts = {rank.host for rank in run.summary.ranks} if run.summary else set()
    return Timeline(
        WIDTH,
        height + 22,
        [(y, f"rank {rank}{_role(run, rank)}") for rank, y in rows.items()],
        bars,
        _ticks((end - begin) / 1e6, height),
        [(colour(name), name) for name in names],
        f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else str(steps[0]),
        len(all_ranks) - len(ranks),
        len(hosts) > 1,
    )


def _is_usable(event: dict[str, Any]) -> bool:
    numbers = (event.get("ts"), event.get("dur"), event.get("pid"))
    return "name" in event and all(isinstance(number, int | float) for number in numbers)


def _step(event: dict[str, Any]) -> int:
    args = event.get("args")
    step = args.get("step", 0) if isinstance(args, dict) else 0
    return step if isinstance(step, int) else 0


def _role(run: RecordedRun, rank: int) -> str:
    if run.layout is None or not 0 <= rank < run.layout.num_ranks:
        return ""
    return f" · s{run.layout.ranks[rank].stage}"


def _bar(event: dict[str, Any], y: float, begin: float, scale: float) -> Bar:
    name = str(event["name"])
    tooltip = (
        f"rank {int(event['pid'])} · {name} · {fmt.seconds(float(event['dur']) / 1e6)} "
        f"· step {_step(event)}"
    )
    return Bar(
        LABEL + (float(event["ts"]) - begin) * scale,
        y,
        max(0.4, float(event["dur"]) * scale),
        colour(name),
        is_wait(name),
        tooltip,
    )


def _ticks(total: float, height: float) -> list[tuple[float, str]]:
    """About six round moments."""
    if total <= 0:
        return []
    step = 10.0 ** len(str(int(total / 6))) if total >= 6 else 1.0
    while step > total / 4:
        step /= 10
    step *= next(factor for factor in (1, 2, 5, 10) if total / (step * factor) <= 8)
    scale = (WIDTH - LABEL) / total
    return [(LABEL + i * step * scale, fmt.seconds(i * step)) for i in range(int(total / step) + 1)]
