"""`heterps doctor`: what works on this machine."""

from __future__ import annotations

from typing import cast, get_args

from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.doctor import Need, report


def doctor(need: str, *, as_json: bool) -> ExitCode:
    """Print the table; the exit code is what works."""
    if need not in get_args(Need):
        raise UserError(f"--need is {need!r}; valid: {', '.join(get_args(Need))}")
    return report(cast(Need, need), as_json=as_json)
