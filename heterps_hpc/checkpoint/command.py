"""`heterps checkpoint …`: look at, check, rewrite and export checkpoints, on a login node too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from heterps_hpc.checkpoint.store import Checkpoint, directory_of, steps_of
from heterps_hpc.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Look at, check, rewrite and export checkpoints.")

Source = Annotated[Path, typer.Argument(help="a run directory (its newest) or a checkpoint")]
Step = Annotated[int | None, typer.Option(help="of a run directory: the checkpoint of this step")]
Out = Annotated[Path, typer.Argument(help="a new directory")]


def _console() -> Console:
    return Console(soft_wrap=True, highlight=False)


def _open(source: Path, step: int | None) -> Checkpoint:
    if step is not None:
        return Checkpoint.open(directory_of(source / "checkpoints", step))
    return Checkpoint.open(source)


@app.command("ls")
def list_checkpoints(run: Annotated[Path, typer.Argument(help="a run directory")]) -> None:
    """List the complete checkpoints of a run."""
    folder = run / "checkpoints" if (run / "checkpoints").is_dir() else run
    if not folder.is_dir():
        raise UserError(f"{run}: no such run directory")
    table = Table("step", "saved", "ranks", "rows", "size", box=None)
    for step in steps_of(folder):
        manifest = Checkpoint.open(directory_of(folder, step)).manifest
        rows = sum(manifest.num_rows(name) for name in manifest.tables)
        saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.saved_at))
        size = f"{manifest.num_bytes / 1e6:,.1f} MB"
        table.add_row(str(step), saved, str(len(manifest.shards)), f"{rows:,}", size)
    if table.row_count == 0:
        _console().print(f"{run}: no complete checkpoint", markup=False)
        return
    _console().print(table)


@app.command("verify")
def verify_checkpoint(source: Source, step: Step = None) -> None:
    """Read every byte and compare it with its checksum."""
    from heterps_hpc.checkpoint.verify import verify

    checkpoint = _open(source, step)
    started = time.perf_counter()
    verdict = verify(checkpoint)
    if verdict.problems:
        raise UserError("\n".join(verdict.problems))
    seconds = time.perf_counter() - started
    _console().print(
        f"{checkpoint.path}: {verdict.num_bytes / 1e6:,.1f} MB, {verdict.num_checksums:,} "
        f"checksums, all good ({seconds:.1f} s)",
        markup=False,
    )


@app.command("reshard")
def reshard_checkpoint(
    source: Source,
    out: Out,
    shards: Annotated[int | None, typer.Option(min=1, help="number of files")] = None,
    layout: Annotated[Path | None, typer.Option(help="a layout.json: a file per rank")] = None,
    step: Step = None,
) -> None:
    """Write the same content as other files."""
    from heterps_hpc.checkpoint.reshard import by_layout, even_split, reshard
    from heterps_hpc.layout import Layout

    if (shards is None) == (layout is None):
        raise UserError("give exactly one of --shards and --layout")
    checkpoint = _open(source, step)
    if layout is not None:
        parts = by_layout(checkpoint, Layout.load(layout))
    else:
        assert shards is not None
        parts = even_split(checkpoint, shards)
    made = reshard(checkpoint, out, parts)
    _console().print(
        f"{out}: {len(made.manifest.shards)} shards, {made.manifest.num_bytes / 1e6:,.1f} MB",
        markup=False,
    )


@app.command("export")
def export_checkpoint(
    source: Source,
    out: Out,
    tables: Annotated[Literal["parquet", "npz"], typer.Option(help="format of tables")] = "parquet",
    since: Annotated[int | None, typer.Option(help="only rows changed at this step or later")] = (
        None
    ),
    state: Annotated[bool, typer.Option(help="the optimizer's state of rows too")] = False,
    step: Step = None,
) -> None:
    """Write tables and dense weights for serving."""
    from heterps_hpc.checkpoint.export import export

    told = export(_open(source, step), out, tables=tables, since=since, state=state)
    for name, facts in told["tables"].items():
        _console().print(f"{out / facts['file']}: {name}, {facts['rows']:,} rows", markup=False)
    _console().print(str(out / told["dense"]), markup=False)
