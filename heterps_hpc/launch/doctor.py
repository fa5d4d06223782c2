"""Doctor: will a run work here, by mpirun and by Slurm? A table, and an exit code for scripts.

Each check names what it found, whether that will do, and the remedy. A check that decides about
local runs is made under a real mpirun, because that is where a wrong pairing of MPI and launcher
shows itself.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.failure import BROKEN_AMX, SHARED_MEMORY, free_shared_memory
from heterps_hpc.launch.mpi import Flavour, Mpi, find_mpi, mpi_environment
from heterps_hpc.launch.rank_command import ENV, without_launchers
from heterps_hpc.launch.slurm.script import plugin_of
from heterps_hpc.launch.slurm.slurm_cli import call, check_slurm_answers

Need = Literal["both", "local", "slurm"]

_PROBE_LIMIT_SECONDS = 120.0
_MIN_SHARED_MEMORY = 64 << 20
_SETUP = "run `make setup` again"
_BFLOAT16 = """
import torch
ones = torch.ones(64, 64, dtype=torch.bfloat16)
assert torch.nn.functional.linear(ones, ones).sum() == 64**3
"""

Found = dict[str, Any]  # by one rank of the probe


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    found: str
    ok: bool
    remedy: str = ""
    local: bool = False  # without it, no local run
    slurm: bool = False  # without it, no run by Slurm


def report(
    need: Need = "both", console: Console | None = None, *, as_json: bool = False
) -> ExitCode:
    """Check everything, print the table; the exit code is what would work."""
    console = console or Console()
    checks = local_checks() + ([] if need == "local" else slurm_checks())
    local = all(check.ok for check in checks if check.local)
    slurm = need != "local" and all(check.ok for check in checks if check.slurm)
    if as_json:
        listed = [dataclasses.asdict(check) for check in checks]
        console.print_json(json.dumps({"local": local, "slurm": slurm, "checks": listed}))
        return exit_code_of(need, local=local, slurm=slurm)
    console.print(as_table(checks))
    console.print(f"local runs: {'yes' if local else 'no'}", highlight=False)
    if need != "local":
        console.print(f"Slurm runs: {'yes' if slurm else 'no'}", highlight=False)
    return exit_code_of(need, local=local, slurm=slurm)


def exit_code_of(need: Need, *, local: bool, slurm: bool) -> ExitCode:
    """0 when what is needed works; else a code for what does."""
    if {"both": local and slurm, "local": local, "slurm": slurm}[need]:
        return ExitCode.DONE
    if local:
        return ExitCode.ONLY_LOCAL
    return ExitCode.ONLY_SLURM if slurm else ExitCode.NOTHING_WORKS


def as_table(checks: list[Check]) -> Table:
    """✔ or ✘ for each, with the remedy below where it is ✘."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        mark = "[green]✔[/]" if check.ok else "[red]✘[/]"
        remedy = f"\n→ {check.remedy}" if check.remedy and not check.ok else ""
        table.add_row(mark, check.name, escape(check.found + remedy))
    return table


def probe_ranks(mpi: Mpi, num_ranks: int = 2) -> list[Found]:
    """What ranks find under a real mpirun; empty if they did not come up."""
    command: list[str] = [str(mpi.mpirun)]
    if mpi.flavour == "mpich":
        command += ["-launcher", "fork"]
    else:
        command += ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
    program = [sys.executable, "-P", "-m", "mpi4py", "-m", "heterps_hpc.runtime.measure.probe"]
    variables = {**mpi_environment(mpi.flavour, "local"), **without_launchers(os.environ)}
    try:
        done = subprocess.run(
            [*command, "-n", str(num_ranks), *program],
            env={**variables, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=_PROBE_LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def local_checks() -> list[Check]:
    """Everything that a run on this machine needs."""
    return [_python(), _env(), _shared_memory(), *_ranks(), bfloat16_check(), _compiler()]


def _env() -> Check:
    found = shutil.which(ENV)
    remedy = "ranks are started by it: install coreutils"
    return Check("env", found or "none", found is not None, remedy, local=True, slurm=True)


def _shared_memory() -> Check:
    free = free_shared_memory()
    found = "none" if free == sys.maxsize else f"{free / 2**20:,.0f} MB free"
    remedy = f"MPI keeps messages in {SHARED_MEMORY}: remove old files there, or enlarge it"
    return Check(SHARED_MEMORY, found, free >= _MIN_SHARED_MEMORY, remedy, local=True)


def _python() -> Check:
    version = platform.python_version()
    ok = sys.version_info >= (3, 11)
    return Check("Python", version, ok, "use Python 3.11 or later", local=True, slurm=True)


def _ranks() -> list[Check]:
    try:
        mpi = find_mpi()
    except UserError as error:
        return [Check("mpirun", "none", False, str(error), local=True)]
    ranks = probe_ranks(mpi)
    launcher = Check("mpirun", f"{mpi.flavour} {mpi.version}, {mpi.mpirun}", True, local=True)
    if not ranks:
        probe = "-P -m mpi4py -m heterps_hpc.runtime.measure.probe"
        remedy = f"try `{mpi.mpirun} -n 2 {sys.executable} {probe}`"
        return [launcher, Check("ranks", "did not start", False, remedy, local=True, slurm=True)]
    return [launcher, *rank_checks(ranks, 2)]


def rank_checks(ranks: list[Found], num_ranks: int) -> list[Check]:
    """The checks on what the ranks of a probe found."""
    one = ranks[0]
    return [
        _world(ranks, num_ranks),
        _threads(one),
        _part(one, "torch", _torch_text(one)),
        _horovod(one),
        _part(one, "hdf5", f"HDF5 {one.get('hdf5')}, h5py {one.get('h5py')}, compression plugins"),
        _part(one, "core", f"C++ tables, instruction set {one.get('core_isa')}"),
    ]


def _world(ranks: list[Found], num_ranks: int) -> Check:
    sizes = sorted({int(rank.get("mpi_size", 0)) for rank in ranks})
    whole = num_ranks * (num_ranks + 1) // 2
    ok = sizes == [num_ranks] and all(rank.get("mpi_sum") == whole for rank in ranks)
    library = ranks[0].get("mpi_library") or ranks[0].get("error_mpi") or "no MPI library"
    if ok:
        return Check("MPI world", f"one world of {num_ranks}; {library}", True, local=True)
    found = (
        f"worlds of {', '.join(map(str, sizes))} where {num_ranks} ranks were started; {library}"
    )
    remedy = "mpirun and mpi4py belong to different MPIs; " + _SETUP
    return Check("MPI world", found, False, remedy, local=True, slurm=True)


def _threads(rank: Found) -> Check:
    level = rank.get("mpi_threads", "unknown")
    remedy = "Horovod needs MPI_THREAD_MULTIPLE; use an MPI built with threads"
    return Check("MPI threads", str(level), level == "multiple", remedy, local=True, slurm=True)


def _torch_text(rank: Found) -> str:
    return f"torch {rank.get('torch')}, {rank.get('devices', 'no accelerator')} here"


def _horovod(rank: Found) -> Check:
    """Also names the reducer that a stage of several ranks would get.

    Where it cannot be imported, runs do without it. One that fails later, or was built without MPI,
    they would choose.
    """
    error = str(rank.get("error_horovod") or "")
    works = bool(rank.get("horovod_mpi"))
    missing = error.startswith(("ImportError", "ModuleNotFoundError"))
    if missing:
        text = f"{error}; gradients are summed by MPI_Allreduce"
    else:
        reducer = "Horovod" if works else "MPI_Allreduce if you set `train.reducer: mpi`"
        parts = f"{rank.get('horovod')} with {rank.get('horovod_parts') or 'nothing'}"
        text = f"{error or parts}; gradients are summed by {reducer}"
    remedy = f"it must be built with MPI; {_SETUP}"
    return Check("Horovod", text, works, remedy, local=not missing, slurm=not missing)


def _part(rank: Found, name: str, found: str) -> Check:
    error = rank.get(f"error_{name}")
    return Check(name, error or found, error is None, _SETUP, local=True, slurm=True)


def bfloat16_check(python: str = sys.executable) -> Check:
    """In a process of its own, which an illegal instruction may kill; float32 does without."""
    done = subprocess.run(
        [python, "-c", _BFLOAT16], capture_output=True, text=True, check=False, timeout=60
    )
    error = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    return Check("bfloat16", error if done.returncode else "works", not done.returncode, BROKEN_AMX)


def _compiler() -> Check:
    path = shutil.which("c++") or shutil.which("g++")
    remedy = "only needed to build: install a C++20 compiler"
    if path is None:
        return Check("compiler", "none", False, remedy)
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Check("compiler", answer.stdout.splitlines()[0] if answer.stdout else path, True)


def slurm_checks() -> list[Check]:
    """Everything that submitting a job needs."""
    if shutil.which("sbatch") is None:
        remedy = "run this on a login node, or try slurm/dev_cluster"
        return [Check("Slurm", "not installed", False, remedy, slurm=True)]
    version = _version()
    try:
        check_slurm_answers()
        config = call("scontrol", "show", "config")
    except UserError as error:
        return [Check("Slurm", version, False, str(error), slurm=True)]
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
