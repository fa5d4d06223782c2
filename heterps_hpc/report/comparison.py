"""Several runs next to each other: what they reached and cost, and what differs in their jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_hpc import format as fmt
from heterps_hpc.report import outcome
from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.report.page import evaluation, status
from heterps_hpc.report.spending import spending
from heterps_hpc.validation import Value

UNKNOWN = "–"


@dataclass(frozen=True)
class Row:
    """One property, with its value in each run."""

    name: str
    values: tuple[str, ...]
    best: int | None = None  # the run that is best in it


@dataclass(frozen=True)
class Comparison:
    """What the table and the page show."""

    runs: tuple[str, ...]
    results: tuple[Row, ...]
    differences: tuple[Row, ...]  # keys of job and cluster whose values are not all the same


def compare(runs: Sequence[RecordedRun]) -> Comparison:
    """Put runs next to each other."""
    return Comparison(
        runs=tuple(_names(runs)),
        results=tuple(_results(runs)),
        differences=tuple(
            _differences("job", [run.job for run in runs])
            + _differences("cluster", [run.cluster for run in runs])
        ),
    )


def _names(runs: Sequence[RecordedRun]) -> list[str]:
    """The directories' names; with their parents' where two are called the same."""
    names = [run.path.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.path.parent.name}/{run.path.name}" for run in runs]
    return names


def _results(runs: Sequence[RecordedRun]) -> list[Row]:
    scores = [dict(evaluation(run)) for run in runs]
    spent = [spending(run) for run in runs]
    plans = [run.layout.plan if run.layout else None for run in runs]
    rows = [Row("state", tuple(status(run).text for run in runs))]
    for name, better in (("AUC", max), ("log loss", min), ("normalised entropy", min)):
        found = [float(each[name]) if name in each else None for each in scores]
        rows.append(_row(name, found, lambda value: f"{value:.4f}", better))
    rates = [run.summary.samples_per_second if run.summary else None for run in runs]
    predicted = [plan.estimate.samples_per_second if plan else None for plan in plans]
    rows += [
        _row("samples/s", rates, fmt.rate, max),
        _row("predicted samples/s", predicted, fmt.rate),
        _row("money spent", [each.money if each else None for each in spent], fmt.money, min),
        _row("predicted money", [p.estimate.money if p else None for p in plans], fmt.money),
        _row("node time", [each.seconds if each else None for each in spent], fmt.seconds, min),
        _row("samples", [run.summary.samples if run.summary else None for run in runs], fmt.count),
        Row("plan", tuple(outcome.shape(plan) if plan else UNKNOWN for plan in plans)),
        Row("scheduler", tuple(plan.scheduler if plan else UNKNOWN for plan in plans)),
    ]
    return [row for row in rows if set(row.values) != {UNKNOWN}]


def _row(
    name: str,
    values: Sequence[float | None],
    form: Callable[[float], str],
    better: Callable[[Sequence[float]], float] | None = None,
) -> Row:
    """`better`: which of the values is the best, if one is."""
    known = [value for value in values if value is not None]
    best = None
    if better is not None and len(set(known)) > 1:
        best = list(values).index(better(known))
    return Row(name, tuple(UNKNOWN if v is None else form(v) for v in values), best)


def _differences(what: str, values: Sequence[Value | None]) -> list[Row]:
    """Keys whose values are not the same in all; a job's name is its own."""
    flat = [{} if v is None else _flatten(v.model_dump(mode="json"), what) for v in values]
    keys = list(dict.fromkeys(key for each in flat for key in each))
    return [
        Row(key, tuple(_text(each.get(key)) for each in flat))
        for key in keys
        if key != "job.name" and len({_text(each.get(key)) for each in flat}) > 1
    ]


def _flatten(value: Any, path: str) -> dict[str, Any]:
    """Leaves by their dotted keys; pools are named, not numbered."""
    if isinstance(value, dict) and value:
        items = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        items = [
            (str(part.get("name", i)) if isinstance(part, dict) else str(i), part)
            for i, part in enumerate(value)
        ]
    else:
        return {path: value}
    return {
        leaf: content
        for key, part in items
        for leaf, content in _flatten(part, f"{path}.{key}").items()
    }


def _text(value: object) -> str:
    return UNKNOWN if value is None else str(value)
