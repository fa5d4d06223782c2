"""The verbs for notebooks and scripts: a job in, values out; `import heterps_hpc as hp`.

They do what `heterps measure`, `plan`, `run` and `report` do, with the same files in the same run
directories, and raise `UserError` or `StartFailed` where those exit with a code.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_hpc.config import Job
from heterps_hpc.errors import StartFailed, UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout
from heterps_hpc.planning_result import PlanningResult
from heterps_hpc.profile import Profile
from heterps_hpc.rundir import RunDir

if TYPE_CHECKING:
    from heterps_hpc.serving.predictor import Predictor

JobLike = Path | str | Mapping[str, Any] | Job
PathLike = Path | str


@dataclass(frozen=True)
class ReportPage:
    """The page of a run; a notebook shows it."""

    path: Path

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:80vh;border:0"></iframe>'


@dataclass(frozen=True)
class Run:
    """A run directory, as values."""

    path: Path

    @property
    def layout(self) -> Layout:
        """The plan that was run, bound to ranks."""
        return Layout.load(RunDir(self.path).layout)

    @property
    def planning(self) -> PlanningResult:
        """What the planner decided and considered."""
        return PlanningResult.load(RunDir(self.path).schedulers)

    @property
    def summary(self) -> dict[str, Any]:
        """Totals: samples, seconds, samples per second, the last evaluation, times of each rank."""
        found: dict[str, Any] = json.loads(_existing(RunDir(self.path).summary).read_text())
        return found

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A record per report of training and per evaluation: `pandas.DataFrame(run.metrics)`."""
        lines = _existing(RunDir(self.path).metrics).read_text().splitlines()
        return [json.loads(line) for line in lines]

    def load(self, step: int | None = None) -> Predictor:
        """Its newest checkpoint (or that of a step), ready to score rows in this process."""
        from heterps_hpc.serving.predictor import Predictor

        return Predictor.load(self.path, step)


def measure(job: JobLike, *, run_dir: PathLike | None = None, on: str = "local") -> Profile:
    """Time every layer on every pool; keeps profile.json in the run directory."""
    from heterps_hpc.commands.measure import measure as take
    from heterps_hpc.commands.prepare import freeze, ready_data
    from heterps_hpc.commands.tasks import task
    from heterps_hpc.launch.launcher import launcher_for

    launcher = launcher_for(on)
    with freeze(_source(job), _path(run_dir), may_have_trained=True) as (spec, cluster, directory):
        with task(directory, "data"):
            ready_data(spec)
        profile = take(spec, cluster, directory, launcher)
        profile.save(directory.profile)
    return profile


def plan(
    job: JobLike, *, profile: PathLike | None = None, run_dir: PathLike | None = None
) -> PlanningResult:
    """Choose pools and ranks by the run's profile, or another; prints the table of plans."""
    from heterps_hpc.commands.plan import plan as decide
    from heterps_hpc.commands.prepare import freeze

    with freeze(_source(job), _path(run_dir), may_have_trained=True) as (spec, cluster, directory):
        decide(spec, cluster, directory, _path(profile))
        return PlanningResult.load(directory.schedulers)


def run(
    job: JobLike,
    *,
    run_dir: PathLike | None = None,
    on: str = "local",
    resume: bool = False,
    profile: PathLike | None = None,
) -> Run:
    """Do all steps, and wait for the end; anything but a finished run raises StartFailed."""
    from heterps_hpc.commands.prepare import default_run_dir
    from heterps_hpc.commands.run import run as do_all
    from heterps_hpc.launch.failure import explain

    source = _source(job)
    spec = Job.load(source) if isinstance(source, Path) else source
    directory = _path(run_dir) or default_run_dir(source, spec, resume=resume)
    code = do_all(source, directory, on, resume=resume, profile=_path(profile))
    if code != ExitCode.DONE:
        where = RunDir(directory)
        raise StartFailed(explain(where, code) or f"the run stopped; see {where.logs}", code)
    return Run(directory)


def report(run: Run | PathLike) -> ReportPage:
    """Write report.html, also of half a run."""
    from heterps_hpc.commands.baseline import record_baseline
    from heterps_hpc.report import write_report

    directory = RunDir(run.path if isinstance(run, Run) else run)
    record_baseline(directory)
    return ReportPage(write_report(directory))


def _source(job: JobLike) -> Path | Job:
    """A job file; or a job whose relative paths count from the working directory."""
    if isinstance(job, Path | str):
        return Path(job)
    if not isinstance(job, Job):
        job = Job.parse(dict(job) if isinstance(job, Mapping) else job, "job")
    return job.anchored(Path.cwd())


def _path(path: PathLike | None) -> Path | None:
    return None if path is None else Path(path)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"{path.parent}: no {path.name} yet; it is written while a run trains")
    return path
