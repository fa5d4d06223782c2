"""The command line: every verb is a thin wrapper that imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from heterps_hpc import __version__
from heterps_hpc.commands.one_line_errors import one_line_errors
from heterps_hpc.commands.usage_errors import run_app
from heterps_hpc.errors import UserError
from heterps_hpc.launch.stop_requests import StopAtOnce

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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
    Path | None, typer.Option("--run-dir", help="Run directory [runs/NAME next to the job file].")
]
On = Annotated[str, typer.Option("--on", help="`local` (mpirun here) or `slurm`.")]

MeasureAgain = Annotated[
    bool, typer.Option("--measure-again", help="Measure even what was measured before.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        _print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    """Train click-through networks on CPU and GPU partitions at once, at the lowest cost."""


@app.command()
def run(
    job: JobFile,
    run_dir: RunDirOption = None,
    on: On = "local",
    resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint.")] = False,
    profile: Annotated[Path | None, typer.Option(help="Do not measure: use this file.")] = None,
    wait: Annotated[bool, typer.Option(help="Follow a Slurm job to its end.")] = True,
    measure_again: MeasureAgain = False,
) -> None:
    """Do all steps: data, measure, plan, launch, report."""
    from heterps_hpc.commands.run import run as run_job

    _exit(
        run_job(
            job,
            run_dir,
            on,
            resume=resume,
            wait=wait,
            profile=profile,
            measure_again=measure_again,
        )
    )


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where the files go.")] = Path(),
    csv: Annotated[
        Path | None,
        typer.Option("--csv", "--parquet", help="Draft a recipe for this CSV or Parquet file."),
    ] = None,
    delimiter: Annotated[str, typer.Option(help="Delimiter of the CSV file, or `tab`.")] = ",",
) -> None:
    """Write a commented job.yaml and cluster.yaml to start from."""
    from heterps_hpc.commands.init import init as write
    from heterps_hpc.commands.init import next_commands

    character = "\t" if delimiter == "tab" else delimiter
    for path in write(folder, csv, character):
        _print(f"wrote {path}")
    _print("look at them, then type:")
    for command in next_commands(folder, csv, character):
        _print(f"  {command}")


@app.command()
def measure(
    job: JobFile,
    run_dir: RunDirOption = None,
    on: On = "local",
    from_run: Annotated[
        Path | None, typer.Option("--from", help="Start nothing: take the times of this run.")
    ] = None,
    measure_again: MeasureAgain = False,
) -> None:
    """Time every layer on every pool with the code that trains; write profile.json."""
    from heterps_hpc.commands.from_run import profile_from_run
    from heterps_hpc.commands.measure import measure as make
    from heterps_hpc.commands.prepare import freeze, model_of, ready_data
    from heterps_hpc.commands.tasks import task
    from heterps_hpc.launch.launcher import launcher_for

    launcher = launcher_for(on)
    found = None if from_run is None else profile_from_run(from_run)
    with freeze(job, run_dir, may_have_trained=True) as (spec, cluster, directory):
        with task(directory, "data"):
            data = ready_data(spec)
        if found is None:
            found = make(spec, cluster, directory, launcher, again=measure_again)
        else:
            found.check_model(model_of(spec, data))
        found.save(directory.profile)
    _print(f"wrote {directory.profile}")


@app.command()
def plan(
    job: JobFile,
    run_dir: RunDirOption = None,
    profile: Annotated[Path | None, typer.Option(help="A profile.json [of the run].")] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Use this scheduler, not the job's.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="What if KEY=VALUE? Shows the difference, writes nothing."),
    ] = None,
    on: On = "local",
    as_json: Json = False,
    print_sbatch: Annotated[bool, typer.Option(help="Print a batch script that fits.")] = False,
    try_on: Annotated[
        str | None, typer.Option(help="Try the best plans (plan.trial_runs): local or slurm.")
    ] = None,
) -> None:
    """Choose pools and ranks that meet the goal at the lowest cost; write layout.json."""
    from heterps_hpc.commands.plan import plan as make
    from heterps_hpc.commands.plan import what_if
    from heterps_hpc.commands.prepare import freeze
    from heterps_hpc.launch.launcher import launcher_for

    if set_:
        what_if(job, set_, run_dir, profile, scheduler, as_json=as_json)
        return
    launcher, tried = launcher_for(on), None if try_on is None else launcher_for(try_on)
    with freeze(job, run_dir, may_have_trained=True) as (spec, cluster, directory):
        if scheduler is not None:
            chosen = spec.plan.model_copy(update={"scheduler": scheduler})
            spec = spec.model_copy(update={"plan": chosen})
        layout = make(spec, cluster, directory, profile, on=launcher, try_on=tried, as_json=as_json)
    if not as_json:
        _print(f"wrote {directory.layout}")
    if print_sbatch:
        from heterps_hpc.launch.slurm.script import own_script

        _print(own_script(layout, cluster, spec, directory.path))


@app.command()
def launch(
    run_dir: RunDirectory,
    on: On = "local",
    resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Print what would be started.")] = False,
    wait: Annotated[bool, typer.Option(help="Follow a Slurm job to its end.")] = True,
    in_allocation: Annotated[
        bool, typer.Option("--in-allocation", help="Use the Slurm job that this command runs in.")
    ] = False,
) -> None:
    """Start the ranks of a planned run, by mpirun here or as one Slurm job."""
    from heterps_hpc.commands.launch import launch as start
    from heterps_hpc.commands.launch import launch_in_allocation, preview

    if in_allocation:
        _exit(launch_in_allocation(run_dir, resume=resume))
    elif dry_run:
        _print(preview(run_dir, on))
    else:
        _exit(start(run_dir, on, resume=resume, wait=wait))


@app.command()
def status(run_dir: RunDirectory, as_json: Json = False) -> None:
    """Show where a run stands: state, progress, checkpoints, what each rank does."""
    from heterps_hpc.commands.status import status as show

    show(run_dir, as_json=as_json)


@app.command()
def ls(
    folder: Annotated[
        Path | None, typer.Argument(help="Where the runs are [runs].", show_default=False)
    ] = None,
    days: Annotated[float | None, typer.Option(help="Only runs of the last N days.")] = None,
    as_json: Json = False,
) -> None:
    """List runs: state, quality, speed, money and date of each, and what they cost together."""
    from heterps_hpc.commands.ls import ls as show

    show(folder, days=days, as_json=as_json)


@app.command()
def compare(
    run_dirs: Annotated[
        list[Path], typer.Argument(help="Two or more run directories.", show_default=False)
    ],
    html: Annotated[Path | None, typer.Option(help="Also write a page to this file.")] = None,
) -> None:
    """Show runs next to each other: quality, money, and what differs in their jobs."""
    from heterps_hpc.commands.compare import compare_runs

    compare_runs(run_dirs, html)


@app.command()
def cancel(
    run_dir: RunDirectory,
    save: Annotated[bool, typer.Option(help="Save a checkpoint first, do not requeue.")] = False,
) -> None:
    """End a run, here or on Slurm, all its ranks at once."""
    from heterps_hpc.commands.cancel import cancel as end

    end(run_dir, save=save)


@app.command()
def doctor(
    need: Annotated[str, typer.Option(help="What must work: both, local or slurm.")] = "both",
    as_json: Json = False,
) -> None:
    """Check Python, MPI, torch, Horovod, HDF5, the tables and Slurm; print how to fix each."""
    from heterps_hpc.commands.doctor import doctor as examine

    _exit(examine(need, as_json=as_json))


@app.command()
def report(run_dir: RunDirectory) -> None:
    """Write report.html: the plan, what it cost, how near the prediction was."""
    from heterps_hpc.commands.report import report as write
    from heterps_hpc.rundir import RunDir

    write(RunDir(run_dir))


@app.command()
def predict(
    run_dir: RunDirectory,
    data: Annotated[
        Path, typer.Option(help="A data set, or a CSV or Parquet file.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Scores: .csv, .parquet or .h5.")] = Path("scores.h5"),
    step: Annotated[int | None, typer.Option(help="A checkpoint's step [the newest].")] = None,
    on: Annotated[
        str | None,
        typer.Option(help="`local`, `slurm`, or `here`: in this process, as files always are."),
    ] = None,
    delimiter: Annotated[str, typer.Option(help="Delimiter of a CSV file, or `tab`.")] = ",",
) -> None:
    """Score rows with a run's checkpoint."""
    from heterps_hpc.commands.predict import predict as score

    _exit(score(run_dir, data, out, step, on, "\t" if delimiter == "tab" else delimiter))


@app.command()
def export(
    run_dir: RunDirectory,
    out: Annotated[Path, typer.Argument(help="A new directory.", show_default=False)],
    dense_format: Annotated[
        Literal["onnx", "torch"], typer.Option("--format", help="Format of the dense layers.")
    ] = "onnx",
    step: Annotated[int | None, typer.Option(help="A checkpoint's step [the newest].")] = None,
) -> None:
    """Write a trained model as files that score rows elsewhere, without this package."""
    from heterps_hpc.launch.live_line import timed_line

    with timed_line("exporting"):  # torch alone takes seconds to load
        from heterps_hpc.commands.export import export as write

        what = write(run_dir, out, dense_format, step)
    _print(what)


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
        typer.echo(
            "Usage: heterps prepare SOURCE …   (heterps prepare SOURCE --help for its options)\n"
        )
        typer.echo("\n".join(f"  {name:<12}{text}" for name, text in DESCRIPTIONS.items()))
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
    """The first rows, with raw values where the recipe knows the way back from keys."""
    from data_prep.originals import Originals
    from heterps_hpc.dataset.show import head

    head(path, rows, originals=Originals)


@app.command(context_settings=_PASS_ON)
def checkpoint(context: typer.Context) -> None:
    """List, check, rewrite and export checkpoints: `heterps checkpoint --help`."""
    from heterps_hpc.checkpoint.command import app as verbs

    run_app(verbs, context.args or ["--help"], "heterps checkpoint")


@app.command()
def explain(key: Annotated[str, typer.Argument(help="Such as train.on_nan, or train.")]) -> None:
    """What a key of a job or cluster file means, may be, and is by default."""
    from heterps_hpc.reference import explain as text_of

    typer.echo(text_of(key))


@app.command()
def version() -> None:
    """Print the version."""
    _print(__version__)


def _print(text: str) -> None:
    typer.echo(text)


def _exit(code: int) -> None:
    if code:
        raise typer.Exit(int(code))


def main() -> None:
    """Entry point of `heterps`."""
    with one_line_errors(), StopAtOnce():
        run_app(app, program="heterps")


if __name__ == "__main__":
    main()
