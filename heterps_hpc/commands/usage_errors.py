"""A command that was typed wrongly ends in one line, as every other mistake does."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from heterps_hpc.errors import UserError


def run_app(
    app: typer.Typer, args: Sequence[str] | None = None, program: str | None = None
) -> None:
    """Run the verb that the words name; without any, print the help."""
    try:
        code = app(args, prog_name=program, standalone_mode=False)
    except TyperException as error:
        said = error.format_message()
        if said.startswith("Usage:"):  # no words at all: what is said is the help
            typer.echo(said, err=True)
            sys.exit(error.exit_code)
        context = getattr(error, "ctx", None)
        where = "heterps" if context is None else context.command_path
        said = said.replace("Value error, ", "").rstrip(".")
        raise UserError(f"{said[:1].lower()}{said[1:]}; see `{where} -h`") from None
    if code:
        sys.exit(code)
