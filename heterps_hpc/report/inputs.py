"""Read a run directory: every file a report is made of, and a line for each that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.events import Line, read_lines
from heterps_hpc.layout import Layout
from heterps_hpc.planning_result import PlanningResult
from heterps_hpc.profile import Profile
from heterps_hpc.report.records import FeatureBaseline, LenientRecord, Metric, Summary
from heterps_hpc.rundir import RunDir

T = TypeVar("T")
R = TypeVar("R", bound=LenientRecord)

_TRACE_LIMIT_BYTES = 64_000_000  # a longer timeline is for a trace viewer


@dataclass(frozen=True)
class CheckpointFiles:
    """One saved state on disk."""

    name: str
    num_files: int
    num_bytes: int


@dataclass
class RecordedRun:
    """Everything known about a run; what is None is explained in `missing`."""

    path: Path
    job: Job | None = None
    cluster: Cluster | None = None
    profile: Profile | None = None
    layout: Layout | None = None
    planning: PlanningResult | None = None
    summary: Summary | None = None
    baseline: FeatureBaseline | None = None
    metrics: list[Metric] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    events: list[Line] = field(default_factory=list)
    checkpoints: list[CheckpointFiles] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The job's name, or else the directory's."""
        if self.job is not None:
            return self.job.name
        return self.layout.job if self.layout is not None else self.path.name


def read_run(run_dir: RunDir) -> RecordedRun:
    """Read what is there; only a directory without any trace of a run is refused."""
    if not run_dir.path.is_dir():
        raise UserError(f"{run_dir.path}: no such run directory; `heterps ls` lists runs")
    run = RecordedRun(run_dir.path)
    run.job = _value(run, run_dir.job, Job.parse_saved, "the job is unknown")
    run.cluster = _value(run, run_dir.cluster, Cluster.load, "no prices: money is left out")
    run.layout = _value(
        run, run_dir.layout, Layout.load, "no plan to show; `heterps plan` makes it"
    )
    run.profile = _value(run, run_dir.profile, Profile.load, "sizes of tensors are left out")
    run.planning = _value(
        run,
        run_dir.schedulers,
        PlanningResult.load,
        "no alternatives, learning curve or frontier to show",
    )
    run.summary = _record(
        run, run_dir.summary, Summary, "the run has not ended: no totals, phases or traffic"
    )
    if run_dir.baseline.is_file():
        run.baseline = _record(run, run_dir.baseline, FeatureBaseline, "no baseline AUC")
    run.metrics = _metrics(run, run_dir.metrics)
    run.trace = _trace(run, run_dir.trace)
    run.events = read_lines(run_dir)
    run.checkpoints = _checkpoints(run_dir.checkpoints)
    if run.job is None and run.layout is None and run.summary is None and not run.metrics:
        raise UserError(
            f"{run_dir.path}: not a run directory: it has neither job.json, layout.json, "
            "metrics.jsonl nor summary.json; give the directory that `heterps run` printed"
        )
    if run.metrics and not any(metric.kind == "evaluation" for metric in run.metrics):
        run.missing.append("no evaluation in metrics.jsonl: the curves are of training batches")
    return run


def _value(run: RecordedRun, path: Path, load: Callable[[Path], T], without: str) -> T | None:
    if not path.is_file():
        run.missing.append(f"no {path.name}: {without}")
        return None
    try:
        return load(path)
    except UserError as error:
        reason = str(error).splitlines()[0].removeprefix(f"{path}: ")
        run.missing.append(f"{path.name} cannot be read ({reason}): {without}")
        return None


def _record(run: RecordedRun, path: Path, kind: type[R], without: str) -> R | None:
    if not path.is_file():
        run.missing.append(f"no {path.name}: {without}")
        return None
    try:
        return kind.model_validate_json(path.read_bytes())
    except (ValidationError, ValueError, OSError) as error:
        reason = _first_problem(error)
        run.missing.append(f"{path.name} cannot be read ({reason}): {without}")
        return None


def _first_problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        return f"{where}: {problem['msg']}" if where else str(problem["msg"])
    return str(error)


def _metrics(run: RecordedRun, path: Path) -> list[Metric]:
    """Whole lines only: the last one of a killed run may be cut short."""
    if not path.is_file():
        run.missing.append(f"no {path.name}: no curves to show")
        return []
    metrics = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            metrics.append(Metric.model_validate_json(line))
        except ValidationError:
            continue
    if not metrics:
        run.missing.append(f"{path.name} has no whole line: no curves to show")
    return metrics


def _trace(run: RecordedRun, path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        run.missing.append(f"no {path.name}: no timeline to draw")
        return []
    if path.stat().st_size > _TRACE_LIMIT_BYTES:
        run.missing.append(f"{path.name} is too long to draw here; open it in a trace viewer")
        return []
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        run.missing.append(f"{path.name} cannot be read ({error}): no timeline to draw")
        return []
    events = data.get("traceEvents", []) if isinstance(data, dict) else data
    return [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]


def _checkpoints(folder: Path) -> list[CheckpointFiles]:
    if not folder.is_dir():
        return []
    found = []
    for entry in sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name)):
        if entry.is_dir() and not entry.name.startswith("."):
            files = [path for path in entry.rglob("*") if path.is_file()]
            found.append(
                CheckpointFiles(entry.name, len(files), sum(path.stat().st_size for path in files))
            )
    return found
