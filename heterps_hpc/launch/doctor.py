"""Doctor: will a run work here, by mpirun and by Slurm? A table, and an exit code that tells."""

from __future__ import annotations

from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.checks import Check, local_checks
from heterps_hpc.launch.slurm.checks import slurm_checks

Need = Literal["both", "local", "slurm"]


def report(need: Need = "both", console: Console | None = None) -> ExitCode:
    """Look at everything, print the table, and say by the exit code what would work."""
    console = console or Console()
    checks = local_checks() + ([] if need == "local" else slurm_checks())
    console.print(as_table(checks))
    local = all(check.ok for check in checks if check.local)
    slurm = need != "local" and all(check.ok for check in checks if check.slurm)
    console.print(f"local runs: {'yes' if local else 'no'}", highlight=False)
    if need != "local":
        console.print(f"Slurm runs: {'yes' if slurm else 'no'}", highlight=False)
    return verdict(need, local=local, slurm=slurm)


def verdict(need: Need, *, local: bool, slurm: bool) -> ExitCode:
    """0 when what is needed works; else a code that says what does."""
    if {"both": local and slurm, "local": local, "slurm": slurm}[need]:
        return ExitCode.DONE
    if local:
        return ExitCode.ONLY_LOCAL
    return ExitCode.ONLY_SLURM if slurm else ExitCode.NOTHING_WORKS


def as_table(checks: list[Check]) -> Table:
    """✔ or ✘ for each, with the remedy where it is ✘."""
    table = Table(show_header=True, header_style="bold")
    for column in ("", "what", "found", "remedy"):
        table.add_column(column, overflow="fold")
    for check in checks:
        mark = "[green]✔[/]" if check.ok else "[red]✘[/]"
        remedy = "" if check.ok else check.remedy
        table.add_row(mark, check.name, escape(check.found), escape(remedy))
    return table
