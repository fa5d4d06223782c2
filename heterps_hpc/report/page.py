"""The report as one HTML file: everything computed elsewhere, put into the template here."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from heterps_hpc import __version__
from heterps_hpc import format as fmt
from heterps_hpc.events import Line
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.report import (
    charts,
    outcome,
    phases,
    picture,
    runners_up,
    spending,
    timeline,
    traffic,
    wall_time,
)
from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.report.records import Summary
from heterps_hpc.rundir import RunDir
from heterps_hpc.spending import attempts, seconds_since_epoch

_BARS_SHOWN = 64
_EVENTS_SHOWN = 200


@dataclass(frozen=True)
class StatusBadge:
    """How the run ended, and the colour to print it in."""

    text: str
    tone: str


@dataclass(frozen=True)
class Tile:
    """One headline number."""

    title: str
    value: str
    note: str


_OUTCOMES = {
    ExitCode.DONE: StatusBadge("done", "good"),
    ExitCode.USER_ERROR: StatusBadge("refused: a mistake in its input", "bad"),
    ExitCode.STOPPED: StatusBadge("stopped after a checkpoint", "warn"),
    ExitCode.RANK_FAILED: StatusBadge("failed: a rank or a node died", "bad"),
    ExitCode.STALLED: StatusBadge("failed: no progress", "bad"),
    ExitCode.NOT_SAVED: StatusBadge("trained to the end, but its last state is not saved", "bad"),
}


def render(run: RecordedRun) -> str:
    """The page."""
    return environment().get_template("page.html.j2").render(_context(run))


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("heterps_hpc.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        money=fmt.money,
        money_at_least=fmt.money_at_least,
        rate=fmt.rate,
        seconds=fmt.seconds,
        size=fmt.size,
        percent=fmt.percent,
        signed_percent=fmt.signed_percent,
        more=fmt.more,
        gap=fmt.gap,
        significant=fmt.significant,
        moment=moment,
        outcome=exit_text,
    )
    return made


def _context(run: RecordedRun) -> dict[str, Any]:
    spent = spending.spending(run)
    walls = wall_time.wall_times(run)
    bars = phases.rank_times(run)
    stages = phases.stage_times(run)
    has_charts = charts.available()
    # matplotlib escapes the text of its SVG itself, so that it may be marked safe
    drawn = (
        {name: Markup(svg) for name, svg in charts.all_charts(run).items()} if has_charts else {}
    )
    return {
        "run": run,
        "version": __version__,
        "status": status(run),
        "about": _about(run),
        "outcome": outcome.sentences(run, spent),
        "tiles": tiles(run, spent),
        "plan": run.layout.plan if run.layout else None,
        "picture": picture.draw(run),
        "column": picture.draw(run, vertical=True),
        "estimated": sorted(outcome.estimated_pools(run)),
        "memory": runners_up.stage_memory(run),
        "choices": outcome.choices(run),
        "runners_up": runners_up.runners_up(run),
        "trials": runners_up.trials(run),
        "floor": run.planning.floor if run.planning else None,
        "searched": _searched(run),
        "stages": stages,
        "longest_stage": max((max(s.predicted or 0, s.measured or 0) for s in stages), default=0),
        "bars": bars[:_BARS_SHOWN],
        "hidden_bars": max(0, len(bars) - _BARS_SHOWN),
        "longest_bar": max((bar.total for bar in bars), default=0),
        "phases": phases.legend(bars),
        "colour": phases.colour,
        "timeline": timeline.draw(run),
        "flows": traffic.flows(run),
        "spent": spent,
        "attempts": attempts(run.events),
        "events": [_event(event) for event in run.events[-_EVENTS_SHOWN:]],
        "evaluation": evaluation(run),
        "without_model": without_model(run),
        "wall_times": walls,
        "wall_seconds": sum(row.seconds for row in walls),
        "again": _again(run),
        "tables": tables_text(run),
        "charts": {name: drawn.get(name) for name in charts.NAMES},
        "has_charts": has_charts,
        "job_text": run.job.to_json() if run.job else "",
        "share": _share,
    }


def _searched(run: RecordedRun) -> str:
    """What the chosen scheduler did and found by itself, even if another's plan was taken."""
    planning = run.planning
    if planning is None or not planning.num_placements:
        return ""
    text = f"{planning.asked or planning.plan.scheduler} looked at "
    text += fmt.plural(planning.num_placements, "placement")
    text += f" in {fmt.seconds(planning.scheduler_seconds)}"
    if planning.own_plan is not None:
        text += f" and found {fmt.money(planning.own_plan.estimate.money)} by itself"
    return text


def _share(part: float | None, whole: float) -> str:
    """Percent of a bar's full length, for CSS."""
    return f"{100 * part / whole:.2f}" if part and whole > 0 else "0"


def status(run: RecordedRun) -> StatusBadge:
    """From the last start's exit code, else from the totals."""
    starts = attempts(run.events)
    if starts and starts[-1].code is not None:
        code = starts[-1].code
        known = {int(entry): text for entry, text in _OUTCOMES.items()}
        return known.get(code, StatusBadge(f"ended with code {code}", "bad"))
    if run.summary is not None:
        return StatusBadge("stopped", "warn") if run.summary.stopped else _OUTCOMES[ExitCode.DONE]
    return (
        StatusBadge("not ended", "warn")
        if starts or run.metrics
        else StatusBadge("planned", "warn")
    )


def exit_text(code: int | None) -> str:
    """What an exit code means."""
    if code is None:
        return "no end was recorded"
    known = {int(entry): text.text for entry, text in _OUTCOMES.items()}
    return f"{known.get(code, 'unknown')} (exit code {code})"


def moment(seconds: float) -> str:
    """A time of day that means the same everywhere."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "–"


def _about(run: RecordedRun) -> list[str]:
    details = []
    if run.layout is not None:
        details.append(f"model {run.layout.model}")
        details.append(fmt.plural(run.layout.num_ranks, "rank"))
    if run.cluster is not None:
        details.append(f"cluster {run.cluster.name}")
    if run.job is not None:
        train = run.job.train
        details.append(f"batches of {fmt.count(train.batch_size)}")
        details.append(fmt.plural(train.micro_batches, "micro-batch").replace("batchs", "batches"))
        details.append(f"staleness {train.staleness}")
    if run.summary is not None:
        details += _devices(run.summary)
    if run.summary is not None and run.summary.reducer:
        details.append(f"reducer {run.summary.reducer}")
    return details


def _devices(summary: Summary) -> list[str]:
    """The accelerators of all ranks, counted by what the maker calls them."""
    found = Counter(
        re.sub(r":\d+", "", rank.device, count=1)
        for rank in summary.ranks
        if rank.device not in ("", "cpu")
    )
    return [f"{count} × {device}" for device, count in found.items()]


def tiles(run: RecordedRun, spent: spending.Spending | None) -> list[Tile]:
    """Headline numbers, as far as they are known."""
    plan = run.layout.plan if run.layout else None
    found = []
    if run.summary is not None and run.summary.samples_per_second:
        error = outcome.prediction_error(run)
        note = "samples/s"
        if plan is not None and error is not None:
            predicted = fmt.rate(plan.estimate.samples_per_second)
            note += f"; predicted {predicted} ({fmt.signed_percent(error)})"
        found.append(Tile("throughput", fmt.rate(run.summary.samples_per_second), note))
    elif plan is not None:
        predicted = fmt.rate(plan.estimate.samples_per_second)
        found.append(Tile("throughput", predicted, "samples/s predicted; not run yet"))
    if plan is not None:
        found.append(
            Tile(
                "cost of the plan",
                fmt.money(plan.estimate.money),
                f"predicted, {fmt.money(plan.estimate.money_per_hour)} per hour",
            )
        )
        kind, form = "certified optimum", fmt.money
        if plan.gap_is_bound:
            kind, form = "proven bound", fmt.money_at_least
        optimum = "" if plan.optimum_money is None else form(plan.optimum_money)
        note = f"{kind} {optimum}" if optimum else "no optimum was computed"
        found.append(Tile("gap to the optimum", outcome.gap_text(plan), note))
    if spent is not None:
        note = f"{fmt.seconds(spent.seconds)} of nodes"
        found.append(Tile("money spent", fmt.money(spent.money), note))
    if run.summary is not None and run.summary.samples:
        note = f"{fmt.count(run.summary.steps)} steps"
        if run.summary.samples_per_second:
            trained = run.summary.samples / run.summary.samples_per_second
            note += f" in {fmt.seconds(trained)} of training"
        found.append(Tile("samples", fmt.count(run.summary.samples), note))
    scores = dict(evaluation(run))
    if "AUC" in scores:
        best = run.baseline
        note = "guessing has 0.5000" if best is None else f"{best.feature} alone has {best.auc:.4f}"
        found.append(Tile("AUC", scores["AUC"], f"on test data; {note}"))
    return found


def evaluation(run: RecordedRun) -> list[tuple[str, str]]:
    """The last evaluation's numbers, by name."""
    last = next((m for m in reversed(run.metrics) if m.kind == "evaluation"), None)
    values: dict[str, Any] = dict(run.summary.evaluation or {}) if run.summary else {}
    if not values and last is not None:
        values = last.model_dump(exclude_none=True)
    names = {"auc": "AUC", "log_loss": "log loss", "normalised_entropy": "normalised entropy"}
    return [
        (label, f"{values[key]:.4f}")
        for key, label in names.items()
        if isinstance(values.get(key), int | float)
    ]


def without_model(run: RecordedRun) -> str:
    """What the mean click rate, and that of the best single feature, would reach: what to beat."""
    values, lines = dict(evaluation(run)), []
    if run.baseline is not None and "AUC" in values:
        lines.append(
            f"Of all single features {run.baseline.feature} has the best AUC, "
            f"{run.baseline.auc:.4f} (of slots, by their keys' click rates in training data)."
        )
    if float(values.get("normalised entropy", 0)) > 0:
        entropy = float(values["log loss"]) / float(values["normalised entropy"])
        lines.append(
            f"Predicting the same rate for every sample has AUC 0.5000 and log loss {entropy:.4f}."
        )
    return " ".join(lines)


def _again(run: RecordedRun) -> str:
    """The command that repeats the run from its own files."""
    if run.job is None or run.profile is None:
        return ""
    where = RunDir(run.path)
    words = ["heterps", "run", str(where.job), "--profile", str(where.profile)]
    return shlex.join([*words, "--run-dir", f"{where.path}-again"])


def tables_text(run: RecordedRun) -> str:
    """What the tables hold, and what they turned away or forgot."""
    held = [
        (name, stats)
        for rank in (run.summary.ranks if run.summary else ())
        for name, stats in rank.tables.items()
    ]
    if not held:
        return ""
    total: Counter[str] = Counter()
    for _, stats in held:
        total.update(stats)
    num_tables = len({name for name, _ in held})
    text = f"{fmt.plural(num_tables, 'table')} hold {fmt.count(total['rows'])} rows"
    notes = {
        "cold": "on disk",
        "evicted": "evicted",
        "rejected": "look-ups of keys not admitted",
        "nonfinite_skipped": "updates skipped as not finite",
    }
    extra = [f"{fmt.count(total[key])} {note}" for key, note in notes.items() if total[key]]
    return ", ".join([text, *extra]) + "."


@dataclass(frozen=True)
class _EventRow:
    time: str
    name: str
    details: str


def _event(event: Line) -> _EventRow:
    seconds = seconds_since_epoch(event.get("time"))
    details = {key: value for key, value in event.items() if key not in ("time", "event")}
    text = ", ".join(f"{key} {_plain(value)}" for key, value in details.items())
    return _EventRow(moment(seconds) if seconds is not None else "–", str(event["event"]), text)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
