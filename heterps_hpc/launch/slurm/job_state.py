"""The state of a job, component by component, as Slurm reports it.

`scontrol show job` rather than `squeue --json`: it answers for one job only, cheaply, and its
format has been the same for many versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from heterps_hpc.launch.slurm.slurm_cli import SlurmRefusal, call

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_ACTIVE = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}
    | {"STAGE_OUT"}
)


@dataclass(frozen=True)
class ComponentState:
    """One component of a job, as Slurm sees it."""

    component: int
    job_id: int
    state: str
    exit_code: int
    signal: int
    restarts: int
    reason: str
    partition: str
    nodes: str

    @property
    def waiting(self) -> bool:
        """Queued, for the first time or again."""
        return self.state in _WAITING

    @property
    def ended(self) -> bool:
        """Will not run any more."""
        return self.state not in _WAITING | _ACTIVE


@dataclass(frozen=True)
class JobState:
    """All components of a job, in order."""

    components: tuple[ComponentState, ...]

    @property
    def ended(self) -> bool:
        """All components have ended."""
        return all(component.ended for component in self.components)

    @property
    def torn(self) -> bool:
        """Component 0 alone was queued again after a node died; the others will never end."""
        leader, *others = self.components
        return leader.waiting and leader.restarts > 0 and any(not c.waiting for c in others)

    @property
    def requeued(self) -> bool:
        """The whole job waits to be started again."""
        return all(part.waiting and part.restarts for part in self.components)

    def __str__(self) -> str:
        return ", ".join(
            f"{c.partition} {c.state.lower()}" + (f" ({c.reason})" if c.waiting else "")
            for c in self.components
        )


def parse(text: str) -> JobState:
    """The state of a job from `scontrol --oneliner show job`."""
    components = [_component(line) for line in text.splitlines() if "JobId=" in line]
    return JobState(tuple(sorted(components, key=lambda component: component.component)))


def state(job_id: int) -> JobState | None:
    """The state of a job; None when Slurm has forgotten it (some minutes after its end)."""
    try:
        text = call("scontrol", "--oneliner", "show", "job", str(job_id))
    except SlurmRefusal as refusal:
        if "Invalid job id" in refusal.reason:
            return None
        raise
    return parse(text)


def _component(line: str) -> ComponentState:
    code, signal = _field(line, "ExitCode", "0:0").split(":")
    return ComponentState(
        component=int(_field(line, "HetJobOffset", "0")),
        job_id=int(_field(line, "JobId", "0")),
        state=_field(line, "JobState", "UNKNOWN"),
        exit_code=int(code),
        signal=int(signal),
        restarts=int(_field(line, "Restarts", "0")),
        reason=_field(line, "Reason", "None"),
        partition=_field(line, "Partition", "?"),
        nodes=_field(line, "NodeList", "(null)"),
    )


def _field(line: str, name: str, default: str) -> str:
    # the job's name is the only free text before these fields, and job_name() leaves no blanks
    found = re.search(rf"(?:^|\s){name}=(\S*)", line)
    return found.group(1) if found else default
