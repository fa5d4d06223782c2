"""Slurm's own programs, called with a clean environment; its refusals as it worded them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from heterps_hpc.errors import UserError
from heterps_hpc.launch.rank_command import without_launchers

_LIMIT_SECONDS = 60.0


class SlurmRefusal(UserError):
    """Slurm refused; `reason` is its own message."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_slurm_answers() -> None:
    """Refuse at once what would be refused after measuring and planning."""
    try:
        call("sinfo", "--noheader", "--format=%R")
    except SlurmRefusal as error:
        why = error.reason.split("fatal: ")[-1]  # what comes before is told in other words
        raise UserError(
            f"no Slurm answers here ({why}); use a login node, set SLURM_CONF, or try "
            "slurm/dev_cluster/cluster up"
        ) from None


def call(*command: str, cwd: Path | None = None, with_errors: bool = False) -> str:
    """The output of a Slurm program, on request with what it writes to standard error.

    Variables such as SBATCH_PARTITION are taken out: they would override the script, and in every
    component at once.
    """
    name = command[0]
    if shutil.which(name) is None:
        raise UserError(
            f"{name} is not on PATH; run this on a login node of a Slurm cluster, or try the "
            "development cluster (slurm/dev_cluster)"
        )
    try:
        done = subprocess.run(
            command,
            env=without_launchers(os.environ),
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"{name} did not answer within {_LIMIT_SECONDS:.0f} s; try `scontrol ping`"
        ) from None
    if done.returncode != 0:
        reason = " ".join((done.stderr or done.stdout).split()).replace(f"{name}: error: ", "")
        raise SlurmRefusal(f"{name}: {reason or f'exit code {done.returncode}'}", reason)
    return done.stdout + done.stderr if with_errors else done.stdout
