"""The checks of `heterps doctor` about Slurm: could a job of several components run here?"""

from __future__ import annotations

import re
import shutil
import subprocess

from heterps_hpc.errors import UserError
from heterps_hpc.launch.checks import Check
from heterps_hpc.launch.mpi import Flavour, find_mpi
from heterps_hpc.launch.slurm.script import plugin_of
from heterps_hpc.launch.slurm.slurm_cli import call


def slurm_checks() -> list[Check]:
    """Everything that submitting a job needs."""
    if shutil.which("sbatch") is None:
        remedy = "run this on a login node, or try slurm/dev_cluster"
        return [Check("Slurm", "not installed", False, remedy, slurm=True)]
    version = _version()
    try:
        config = call("scontrol", "show", "config")
    except UserError as error:
        remedy = f"{error}; is SLURM_CONF right?"
        return [Check("Slurm", f"{version}, no answer", False, remedy, slurm=True)]
    try:
        flavour: Flavour | None = find_mpi().flavour
    except UserError:
        flavour = None
    return [
        Check("Slurm", version, True, slurm=True),
        scheduler_check(config),
        plugin_check(_plugins(), flavour),
        _partitions(),
    ]


def scheduler_check(config: str) -> Check:
    """Only the backfill scheduler starts jobs of several components."""
    found = re.search(r"^SchedulerType\s*=\s*(\S+)", config, re.MULTILINE)
    kind = found.group(1) if found else "unknown"
    remedy = (
        "jobs of several components never start without it; ask for SchedulerType=sched/backfill"
    )
    return Check("scheduler", kind, kind == "sched/backfill", remedy, slurm=True)


def plugin_check(plugins: list[str], flavour: Flavour | None) -> Check:
    """srun must be able to speak to the MPI at hand."""
    found = ", ".join(plugins) or "none"
    if flavour is None:
        return Check("srun --mpi", found, False, "no MPI here to compare with", slurm=True)
    wanted = plugin_of(flavour)
    remedy = f"{flavour} needs {wanted}; install Slurm's plugin, or use the other MPI"
    return Check("srun --mpi", found, wanted in plugins, remedy, slurm=True)


def parse_plugins(text: str) -> list[str]:
    """Names from `srun --mpi=list`, whose form differs between versions."""
    words = re.findall(r"^\s*(?:srun: )?\s*([a-z0-9_]+)\s*$", text, re.MULTILINE)
    return [word for word in dict.fromkeys(words) if word != "none"]


def _plugins() -> list[str]:
    done = subprocess.run(
        ["srun", "--mpi=list"], capture_output=True, text=True, timeout=30, check=False
    )
    return parse_plugins(done.stdout + done.stderr)


def _partitions() -> Check:
    try:
        names = sorted({line.rstrip("*") for line in call("sinfo", "-h", "-o", "%P").split()})
    except UserError as error:
        return Check("partitions", "unknown", False, str(error), slurm=True)
    return Check("partitions", ", ".join(names) or "none", bool(names), "none is up", slurm=True)


def _version() -> str:
    done = subprocess.run(
        ["sbatch", "--version"], capture_output=True, text=True, timeout=90, check=False
    )
    found = re.search(r"^slurm\S* \S+", done.stdout, re.MULTILINE)
    return found.group(0) if found else "version unknown"
