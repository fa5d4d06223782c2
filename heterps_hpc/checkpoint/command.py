"""`heterps checkpoint …`: look at, check, rewrite and export checkpoints, on a login node too."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from heterps_hpc import format as fmt
from heterps_hpc.checkpoint.store import Checkpoint, directory_of, steps_of
from heterps_hpc.errors import UserError
from heterps_hpc.rundir import RunDir

app = typer.Typer(
    no_args_is_help=True,
    help="Look at, check, rewrite and export checkpoints.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    rich_markup_mode=None,  # as in all other verbs
)

Source = Annotated[Path, typer.Argument(help="a run directory (its newest) or a checkpoint")]
Step = Annotated[int | None, typer.Option(help="of a run directory: the checkpoint of this step")]
Out = Annotated[Path, typer.Argument(help="a new directory")]


def _console() -> Console:
    return Console(soft_wrap=True, highlight=False)


def _open(source: Path, step: int | None) -> Checkpoint:
    if step is not None:
        return Checkpoint.open(directory_of(RunDir(source).checkpoints, step))
    return Checkpoint.open(source)


@app.command("ls")
def list_checkpoints(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, for programs")] = False,
) -> None:
    """List the complete checkpoints of a run."""
    inside = RunDir(run).checkpoints
    folder = inside if inside.is_dir() else run
    if not folder.is_dir():
        raise UserError(f"{run}: no such run directory; `heterps ls` lists runs")
    found = [_listed(Checkpoint.open(directory_of(folder, step))) for step in steps_of(folder)]
    if as_json:
        _console().print_json(json.dumps(found))
        return
    table = Table(box=None)
    for name in ("step", "saved", "ranks", "rows", "size"):
        table.add_column(name, justify="left" if name == "saved" else "right")
    for each in found:
        saved = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["saved_at"]))
        step, shards, rows = (fmt.count(each[key]) for key in ("step", "num_shards", "num_rows"))
        table.add_row(step, saved, shards, rows, fmt.size(each["num_bytes"]))
    if table.row_count == 0:
        _console().print(f"{run}: no complete checkpoint", markup=False)
        return
    _console().print(table)


def _listed(checkpoint: Checkpoint) -> dict[str, float]:
    manifest = checkpoint.manifest
    return {
        "step": checkpoint.step,
        "saved_at": manifest.saved_at,
        "num_shards": len(manifest.shards),
        "num_rows": sum(manifest.num_rows(name) for name in manifest.tables),
        "num_bytes": manifest.num_bytes,
    }


@app.command("verify")
def verify_checkpoint(source: Source, step: Step = None) -> None:
    """Read every byte and compare it with its checksum."""
    from heterps_hpc.checkpoint.verify import verify

    checkpoint = _open(source, step)
    started = time.perf_counter()
    findings = verify(checkpoint)
    if findings.problems:
        raise UserError("\n".join(findings.problems))
    seconds = time.perf_counter() - started
    _console().print(
        f"{checkpoint.path}: {findings.num_bytes / 1e6:,.1f} MB, {findings.num_checksums:,} "
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
    base: Annotated[
        Path | None, typer.Option(help="an earlier export or checkpoint: list rows that are gone")
    ] = None,
    step: Step = None,
) -> None:
    """Write tables and dense weights for serving, or for `train.init_from`."""
    from heterps_hpc.checkpoint.export import export, may_evict

    checkpoint = _open(source, step)
    spec = export(checkpoint, out, tables=tables, since=since, state=state, base=base)
    for name, table in spec.tables.items():
        gone = "" if table.removed is None else f", {table.removed:,} removed since {base}"
        _console().print(f"{out / table.file}: {name}, {table.rows:,} rows{gone}", markup=False)
    _console().print(str(out / spec.dense), markup=False)
    if since is not None and base is None and may_evict(checkpoint):
        _console().print(
            "rows may have been evicted since then, and are not listed: give --base, the export "
            "or checkpoint that these rows are put over",
            markup=False,
        )
