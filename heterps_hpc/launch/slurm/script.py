"""Render: a layout as one sbatch script. Pure: values in, text out; submitting is elsewhere."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import jinja2

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.launch.mpi import Flavour, mpi_environment
from heterps_hpc.launch.rank_command import RANK_PROGRAM, rank_command
from heterps_hpc.launch.slurm import options
from heterps_hpc.layout import Component, Layout
from heterps_hpc.rundir import RunDir

_PLUGIN: dict[Flavour, str] = {"mpich": "pmi2", "openmpi": "pmix"}
_MAX_SECONDS_TO_SAVE = 120


def render(
    layout: Layout,
    cluster: Cluster,
    job: Job,
    run_dir: Path | str,
    *,
    flavour: Flavour = "mpich",
    python: str | None = None,
    program: str = RANK_PROGRAM,
    max_requeues: int | None = None,
) -> str:
    """The batch script of a layout; `max_requeues`, if starts were made before this job."""
    run = RunDir(run_dir)
    if max_requeues is None:
        max_requeues = job.launch.max_restarts
    site = cluster.site
    for line in (*site.setup, *site.modules, *site.prefix, *site.srun_options):
        if "\n" in line or "\0" in line:
            raise UserError(f"site: {line!r} spans lines; write one entry per line")
    python = site.python or python or sys.executable
    variables = {**mpi_environment(flavour, "slurm"), **site.environment}
    for name in variables:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"site.environment: {name!r} is not a variable's name")
    return _template().render(
        run_dir=run.path,
        headers=_headers(layout, cluster, job, run, requeue=max_requeues > 0),
        modules=site.modules,
        setup=site.setup,
        environment=variables,
        flavour=flavour,
        srun=["srun", f"--mpi={site.srun_mpi or plugin_of(flavour)}", "--kill-on-bad-exit=1"],
        parts=_srun_parts(layout, cluster, job, run.path, python, program),
        history=run.history,
        max_requeues=max_requeues,
        epilogue=[
            *(*site.prefix, python, "-m", "heterps_hpc.launch.slurm.epilogue"),
            *(str(run.path), "--ranks", str(layout.num_ranks)),
        ],
    )


def own_script(layout: Layout, cluster: Cluster, job: Job, run_dir: Path | str) -> str:
    """A short script for people to change: heads that fit the layout, and one call."""
    lines = ["#!/bin/bash"]
    for number, header in enumerate(_headers(layout, cluster, job, RunDir(run_dir), requeue=True)):
        lines += ["#SBATCH hetjob"] if number else []
        lines += [f"#SBATCH {options.sbatch_word(word)}" for word in header]
    site = cluster.site
    modules = [f"module load {shlex.quote(module)} || exit 2" for module in site.modules]
    call = shlex.join(["heterps", "launch", str(RunDir(run_dir).path), "--in-allocation"])
    return "\n".join([*lines, "", *modules, *site.setup, call, ""])


def _headers(
    layout: Layout, cluster: Cluster, job: Job, run: RunDir, *, requeue: bool
) -> list[list[str]]:
    """The options of each component; those of the whole job stand in the first."""
    limit = options.limit_seconds(job, cluster, layout)
    headers = [
        options.component_options(component, cluster, options.slurm_time(limit))
        for component in layout.components
    ]
    headers[0] = [*_job_options(job, run, limit, requeue=requeue), *headers[0]]
    return headers


def one_component(component: Component, cluster: Cluster, job: Job) -> str:
    """A script of one component alone, to ask Slurm which one it refuses."""
    limit = options.slurm_time(options.limit_seconds(job, cluster))
    header = options.component_options(component, cluster, limit)
    lines = [f"#SBATCH {options.sbatch_word(word)}" for word in header]
    return "\n".join(["#!/bin/bash", *lines, "true", ""])


def plugin_of(flavour: Flavour) -> str:
    """The plugin of srun that gives this MPI one world; a wrong one gives worlds of one rank."""
    return _PLUGIN[flavour]


def job_name(name: str) -> str:
    """A job's name as Slurm's lists show it: letters, digits, dots and dashes."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    slug = re.sub("hetjob", "het-job", slug, flags=re.IGNORECASE)
    return f"heterps-{slug or 'run'}"[:64]


def _job_options(job: Job, run: RunDir, limit_seconds: int, *, requeue: bool) -> list[str]:
    """Options of the whole job; they stand in component 0 and the others inherit them."""
    options.check_words("run directory", str(run.path))
    if "\\" in str(run.path):
        raise UserError(
            f"run directory {str(run.path)!r} has a backslash, which Slurm takes for an escape; "
            "choose another with --run-dir"
        )
    before_end = min(_MAX_SECONDS_TO_SAVE, limit_seconds // 5)
    log = f"{str(run.slurm_log.parent).replace('%', '%%')}/{run.slurm_log.name}"
    return [
        f"--job-name={job_name(job.name)}",
        f"--output={log}",
        "--open-mode=append",
        f"--signal=USR1@{before_end}",
        "--requeue" if requeue else "--no-requeue",
    ]


@dataclass(frozen=True)
class _Part:
    """One component's part of srun."""

    options: list[str]
    command: list[str]


def _srun_parts(
    layout: Layout, cluster: Cluster, job: Job, run_dir: Path, python: str, program: str
) -> list[_Part]:
    parts = []
    for number, component in enumerate(layout.components):
        # a plain job has no groups, and srun fails when one is named
        group = [f"--het-group={number}"] if len(layout.components) > 1 else []
        words = [*group, *options.srun_options(component, cluster, job.launch.bind)]
        prefix = cluster.site.prefix
        command = rank_command(run_dir, number, component, python, prefix, program)
        parts.append(_Part(words, command))
    return parts


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("heterps_hpc", "slurm_templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["sbatch"] = options.sbatch_word
    environment.filters["sh"] = lambda word: shlex.quote(str(word))
    environment.filters["shwords"] = options.shell_words
    return environment.get_template("job.sbatch.j2")
