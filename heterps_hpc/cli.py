"""The command line: every verb is a thin wrapper that imports what it needs when it runs."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

from heterps_hpc import __version__
from heterps_hpc.errors import UserError

app = typer.Typer(
    help="Train click-through networks on CPU and GPU partitions at once, at the least money.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# what follows belongs to another parser, --help included
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
data_app = typer.Typer(help="Look at a data set.", no_args_is_help=True)
app.add_typer(data_app, name="data")

JobFile = Annotated[Path, typer.Argument(help="The job file (YAML).", show_default=False)]
RunDirectory = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
RunDirOption = Annotated[
    Path | None, typer.Option("--run-dir", help="Run directory [runs/NAME beside the job file].")
]
On = Annotated[str, typer.Option("--on", help="`local` (mpirun here) or `slurm`.")]


@app.command()
def run(
    job: JobFile,
    run_dir: RunDirOption = None,
    on: On = "local",
    resume: Annotated[bool, typer.Option(help="Go on from the newest checkpoint.")] = False,
) -> None:
    """Do all steps: data, measure, plan, launch, report."""
    from heterps_hpc.commands.run import run as run_job

    _exit(run_job(job, run_dir, _where(on), resume))


@app.command()
def measure(job: JobFile, run_dir: RunDirOption = None, on: On = "local") -> None:
    """Time every layer on every pool with the code that trains; write profile.json."""
    from heterps_hpc.commands.prepare import freeze, ready_data
    from heterps_hpc.commands.run import ready_profile

    spec, cluster, directory = freeze(job, run_dir)
    ready_data(spec)
    ready_profile(spec, cluster, directory, _where(on))
    _say(f"wrote {directory.profile}")


@app.command()
def plan(
    job: JobFile,
    run_dir: RunDirOption = None,
    profile: Annotated[Path | None, typer.Option(help="A profile.json [of the run].")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Instead of the job's own.")] = None,
) -> None:
    """Choose pools and ranks of least money for the throughput floor; write layout.json."""
    from heterps_hpc.commands.plan import plan as make
    from heterps_hpc.commands.prepare import freeze

    spec, cluster, directory = freeze(job, run_dir)
    if scheduler is not None:
        chosen = spec.plan.model_copy(update={"scheduler": scheduler})
        spec = spec.model_copy(update={"plan": chosen})
    make(spec, cluster, directory, profile)
    _say(f"wrote {directory.layout}")


@app.command()
def launch(
    run_dir: RunDirectory,
    on: On = "local",
    resume: Annotated[bool, typer.Option(help="Go on from the newest checkpoint.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Print what would be started.")] = False,
    wait: Annotated[bool, typer.Option(help="Follow a Slurm job to its end.")] = True,
) -> None:
    """Start the ranks of a planned run, by mpirun here or as one Slurm job."""
    from heterps_hpc.commands import launch as launching
    from heterps_hpc.commands.prepare import thaw
    from heterps_hpc.commands.run import launch as start
    from heterps_hpc.layout import Layout

    job, cluster, directory = thaw(run_dir)
    layout = Layout.load(directory.layout)
    if dry_run:
        _say(launching.preview(job, cluster, layout, directory, _where(on)))
        return
    with directory.hold():
        code = start(job, cluster, layout, directory, _where(on), resume=resume, wait=wait)
    _exit(code)


@app.command()
def status(run_dir: RunDirectory) -> None:
    """Say where a run stands: state, progress, checkpoints, what each rank does."""
    from heterps_hpc.commands import launch as launching

    launching.status(run_dir)


@app.command()
def cancel(
    run_dir: RunDirectory,
    save: Annotated[bool, typer.Option(help="Save a checkpoint first, do not requeue.")] = False,
) -> None:
    """End the Slurm job of a run, all its components at once."""
    from heterps_hpc.commands import launch as launching

    launching.cancel(run_dir, save=save)


@app.command()
def doctor(
    need: Annotated[str, typer.Option(help="What must work: both, local or slurm.")] = "both",
) -> None:
    """Check Python, MPI, torch, Horovod, HDF5, the tables and Slurm; say how to mend each."""
    from heterps_hpc.commands import launch as launching

    _exit(launching.doctor(need))


@app.command()
def report(run_dir: RunDirectory) -> None:
    """Write report.html: the plan, what it cost, how near the prediction was."""
    from heterps_hpc.commands.run import report as write
    from heterps_hpc.rundir import RunDir

    write(RunDir(run_dir))


@app.command()
def predict(
    run_dir: RunDirectory,
    data: Annotated[Path, typer.Option(help="The data set to score.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Scores, in sample order (HDF5).")] = Path("scores.h5"),
    step: Annotated[int | None, typer.Option(help="A checkpoint's step [the newest].")] = None,
    on: On = "local",
) -> None:
    """Score a data set with a run's checkpoint."""
    from heterps_hpc.commands.predict import predict as score

    _exit(score(run_dir, data, out, step, _where(on)))


@app.command(context_settings=_PASS_ON)
def prepare(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="criteo, avazu, movielens, csv, synthetic …")],
) -> None:
    """Turn a click log into a data set; `heterps prepare SOURCE --help` for its options."""
    import importlib

    from data_prep import DESCRIPTIONS, SOURCES
    from heterps_hpc.validation import nearest

    if source in ("--help", "-h", "help"):
        _say("Usage: heterps prepare SOURCE …   (heterps prepare SOURCE --help for its options)\n")
        _say("\n".join(f"  {name:<12}{text}" for name, text in DESCRIPTIONS.items()))
        return
    if source not in SOURCES:
        raise UserError(f"no source {source!r}; {nearest(source, list(SOURCES))}")
    _exit(importlib.import_module(SOURCES[source]).main(context.args))


@data_app.command("info")
def data_info(
    path: Path,
    verify: Annotated[bool, typer.Option(help="Read every byte against its checksum.")] = False,
) -> None:
    """Schema, rows, slots, cardinality, size, label rate."""
    from heterps_hpc.dataset.show import info

    info(path, "checksums" if verify else "sizes")


@data_app.command("head")
def data_head(path: Path, rows: Annotated[int, typer.Option(min=1)] = 5) -> None:
    """The first rows."""
    from heterps_hpc.dataset.show import head

    head(path, rows)


@app.command(context_settings=_PASS_ON)
def checkpoint(context: typer.Context) -> None:
    """List, check, rewrite and export checkpoints: `heterps checkpoint --help`."""
    from heterps_hpc.checkpoint.command import app as verbs

    verbs(context.args or ["--help"], prog_name="heterps checkpoint")


@app.command()
def explain(key: Annotated[str, typer.Argument(help="Such as train.on_nan, or train.")]) -> None:
    """What a key of a job or cluster file means, may be, and is by default."""
    from heterps_hpc.reference import explain as text_of

    _say(text_of(key))


@app.command()
def version() -> None:
    """Print the version."""
    _say(__version__)


def _where(on: str) -> str:
    if on not in ("local", "slurm"):
        raise UserError(f"--on is {on!r}; valid: local, slurm")
    return on


def _say(text: str) -> None:
    typer.echo(text)


def _exit(code: int) -> None:
    if code:
        raise typer.Exit(int(code))


def main() -> None:
    """Entry point of `heterps`: the user's mistakes end in one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # in a POSIX locale no "→" may end a report
            stream.reconfigure(errors="replace")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        app()
    except UserError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"heterps: {line}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
