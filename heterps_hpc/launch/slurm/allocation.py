"""A layout in the allocation that we are in: from a batch script that people wrote themselves.

The script that `heterps launch --on slurm` would submit is run by bash, in place: its `#SBATCH`
lines are comments now, all else (one srun, events, watcher, requeue) is the same.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping

from heterps_hpc import events
from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.errors import UserError
from heterps_hpc.events import Launched, StopWanted, Submitted
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.slurm.launcher import SlurmLauncher
from heterps_hpc.launch.slurm.slurm_cli import call
from heterps_hpc.launch.stop_requests import StopRequests
from heterps_hpc.layout import Component, Layout

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5


def is_requeued(environment: Mapping[str, str]) -> bool:
    """Whether Slurm has started this job before: then the run continues."""
    return environment.get("SLURM_RESTART_COUNT", "0") not in ("", "0")


def job_in(environment: Mapping[str, str]) -> int:
    """The job that we are in."""
    found = environment.get("SLURM_JOB_ID", "")
    if not found.isdigit():
        raise UserError(
            "--in-allocation: this is not inside a Slurm job (no SLURM_JOB_ID); submit a script "
            "with this command by sbatch, or use --on slurm"
        )
    return int(found)


def check_allocation(layout: Layout, environment: Mapping[str, str]) -> None:
    """Refuse an allocation that is not what the layout needs, component by component."""
    remedy = "`heterps plan JOB --print-sbatch` prints the head that fits the plan"
    num_groups = int(environment.get("SLURM_HET_SIZE") or 1)
    if num_groups != len(layout.components):
        raise UserError(
            f"the layout has {len(layout.components)} components, this job {num_groups}; {remedy}"
        )
    for number, component in enumerate(layout.components):
        suffix = f"_HET_GROUP_{number}" if num_groups > 1 else ""
        problem = _problem(component, suffix, environment)
        if problem:
            raise UserError(
                f"component {number} of the layout (pool {component.pool!r}) {problem}; {remedy}"
            )


def _problem(component: Component, suffix: str, environment: Mapping[str, str]) -> str | None:
    partition = environment.get(f"SLURM_JOB_PARTITION{suffix}")
    if component.partition is not None and partition not in (None, component.partition):
        return f"needs partition {component.partition!r}, the job has {partition!r} there"
    needed = {
        "SLURM_JOB_NUM_NODES": (component.num_nodes, "nodes"),
        "SLURM_NTASKS": (component.num_ranks, "tasks"),
        "SLURM_CPUS_PER_TASK": (component.cores_per_rank, "CPUs per task"),
    }
    for variable, (count, what) in needed.items():
        found = environment.get(variable + suffix, "")
        if found.isdigit() and int(found) < count:
            return f"needs {count} {what}, the job has {found} there"
    return None


def run_in_allocation(request: LaunchRequest, environment: Mapping[str, str]) -> ExitCode:
    """Run the batch script of a layout here and wait for it."""
    run, job_id = request.run, job_in(environment)
    check_allocation(request.layout, environment)
    run.check_usable(request.layout.num_ranks)
    launcher = SlurmLauncher()
    launcher.preview(request)  # a run that is refused has not been launched
    if not is_requeued(environment):
        events.record(run, Launched(on="slurm", num_ranks=request.layout.num_ranks))
        num_components = len(request.layout.components)
        events.record(run, Submitted(job_id=job_id, num_components=num_components))
    # requeues of this very job have been counted by Slurm as well
    requeues = int(environment.get("SLURM_RESTART_COUNT") or 0)
    script = launcher.script(request, made_before=requeues)
    write_atomically(run.script, script)
    command = [*shell_of(script), str(run.script)]
    with StopRequests() as stops:
        # a session of its own: Ctrl-C in an interactive allocation is for us alone
        process = subprocess.Popen(command, env=dict(environment), start_new_session=True)
        asked = False
        while (status := _wait(process)) is None:
            # Slurm sends SIGTERM when it ends or requeues the job: it ends the ranks itself
            if not asked and stops.count and stops.first != "SIGTERM":
                asked = True
                _ask(request, job_id, stops.first)
    return ExitCode(status) if status in set(ExitCode) else ExitCode.RANK_FAILED


def shell_of(script: str) -> list[str]:
    """As its first line says: many sites define `module` for login shells only."""
    return script.splitlines()[0].removeprefix("#!").split()


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _ask(request: LaunchRequest, job_id: int, why: str) -> None:
    """Have the ranks save and end; a stop by the user is not undone by a requeue."""
    if why != "SIGUSR1":
        events.record(request.run, StopWanted(why=why, job_id=job_id))
    call("scancel", "--signal=USR1", str(job_id))
    log.warning("%s: asked the ranks to save and stop", why)
