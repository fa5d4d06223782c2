"""Launcher: the one way from a layout to running ranks, by mpirun here or by Slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.rank_command import RANK_PROGRAM
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir

Capacity = Mapping[str, int]  # ranks that each pool can give now


@dataclass(frozen=True)
class LaunchRequest:
    """What to start, and where its files are."""

    run: RunDir
    layout: Layout
    job: Job
    cluster: Cluster
    program: str = RANK_PROGRAM
    saves: bool = True  # else ranks that are to stop have nothing to keep: they are ended at once


def _ignore(_: Any) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class BetterLayout:
    """A layout on which the rest of a run is cheaper, or reaches the floor."""

    layout: Layout
    saving: float  # of the money that is left to spend, the restart included; negative if none
    take: Callable[[], None] = lambda: None  # write what led to it into the run directory


class Replanner:
    """Looks for a cheaper layout by the run's own times; this one finds none."""

    def poll(self) -> bool:
        """Whether a run should be stopped for one; asked all the time while its ranks run."""
        return False

    def better(self) -> BetterLayout | None:
        """The layout for the next start, if the newest start has shown a cheaper one."""
        return None


@dataclass(frozen=True)
class Listener:
    """Callbacks for what happens meanwhile."""

    line: Callable[[str], None] = _ignore  # a line that ranks or their launcher printed
    progress: Callable[[dict[str, Any]], None] = _ignore  # a record of metrics.jsonl
    state: Callable[[str], None] = _ignore  # the state of the job has changed
    replanner: Replanner = field(default_factory=Replanner)  # who may want another layout


class Launcher(Protocol):
    """Starts ranks, waits for their end, and knows what its nodes can hold."""

    @property
    def name(self) -> str:
        """As `--on` names it."""

    @property
    def one_machine(self) -> bool:
        """Whether one machine plays the nodes of all pools."""

    def check(self, request: LaunchRequest) -> None:
        """Refuse what cannot be started, with nothing recorded of it."""

    def start(self, request: LaunchRequest, listener: Listener) -> ExitCode:
        """Start the ranks once and wait for their end; they continue from the newest checkpoint."""

    def submit(self, request: LaunchRequest) -> str:
        """Start the ranks without waiting for them; a line for the user."""

    def preview(self, request: LaunchRequest) -> str:
        """What `start` would run: the command, or the batch script."""

    def expected_start(self, request: LaunchRequest) -> datetime | None:
        """When the ranks could start if they were queued now; None: at once."""

    def capacity(self, cluster: Cluster, job: Job) -> Capacity:
        """Ranks that each pool can give now."""

    def node_capacity(self, pool: Pool) -> int:
        """Ranks that one node of a pool really runs at a time."""

    def cancel(self, run: RunDir, *, save: bool) -> str:
        """End the run, after a checkpoint if `save`; a line for the user."""


def launcher_for(on: str) -> Launcher:
    """The launcher that `--on` names."""
    if on == "local":
        from heterps_hpc.launch.local import LocalLauncher

        return LocalLauncher()
    if on == "slurm":
        from heterps_hpc.launch.slurm.launcher import SlurmLauncher

        return SlurmLauncher()
    raise UserError(f"--on is {on!r}; valid: local, slurm")
