"""A small Slurm client for tests: submit, look, wait with a limit, never sleep and hope."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm.dev_cluster.cluster import DevCluster
from slurm.dev_cluster.processes import step_processes

ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE"}
POLL_SECONDS = 0.2


@dataclass
class SlurmClient:
    """One test's access to the cluster."""

    cluster: DevCluster
    jobs: list[int] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return self.cluster.spec.environment()

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A Slurm command against this cluster."""
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=60,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def submit(self, script: Path, *options: str) -> int:
        """Submit a script; the job's (leader's) number."""
        job = int(self.run("sbatch", "--parsable", *options, script).stdout.split(";")[0])
        self.jobs.append(job)
        return job

    def components(self, job: int) -> list[dict[str, Any]]:
        """squeue's records of the job's components, in their order (one for a plain job)."""
        records: list[dict[str, Any]] = json.loads(
            self.run("squeue", "--json", "--states=all").stdout
        )["jobs"]
        own = [r for r in records if job in (r["job_id"], r["het_job_id"])]
        return sorted(own, key=lambda r: int(r["het_job_offset"]))

    def states(self, job: int) -> list[str]:
        return [str(record["job_state"]) for record in self.components(job)]

    def wait_for(self, what: str, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Poll until the condition holds; fail with the queue's own words after the limit."""
        give_up = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > give_up:
                queue = self.run("squeue", "--states=all", check=False).stdout
                raise AssertionError(f"{what}: not within {seconds:.0f} s\n{queue}")
            time.sleep(POLL_SECONDS)

    def wait_until_ended(self, job: int, seconds: float = 60.0) -> list[str]:
        """The final states of the components."""
        self.wait_for(
            f"end of job {job}",
            lambda: bool(states := self.states(job)) and set(states) <= ENDED,
            seconds,
        )
        return self.states(job)

    def start_soon(self, job: int) -> None:
        """Start a requeued job, which Slurm would hold back for two minutes.

        Not at once: until the ranks of the first start are gone PMI cannot serve the second, and
        within the same second the job's credential still counts as revoked.
        """
        self.wait_for(f"job {job} has left its nodes", lambda: not self._steps_of(job))
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+3seconds")

    def _steps_of(self, job: int) -> list[str]:
        """What the job still runs, by the names of its daemons on the nodes."""
        own = re.compile(rf"slurmstepd: \[({job}|{job + 1})\.".encode())
        lines = (Path(f"/proc/{pid}/cmdline") for pid in step_processes(self.cluster.spec))
        return [str(line) for line in lines if line.exists() and own.match(line.read_bytes())]

    def clean_up(self) -> None:
        """Cancel this test's jobs and bring back nodes that it killed."""
        for job in self.jobs:
            self.run("scancel", str(job), check=False)
        for job in self.jobs:
            self.wait_until_ended(job)
        spec = self.cluster.spec
        for node in spec.nodes:
            if not spec.pid_file(f"slurmd.{node.name}").exists():
                self.cluster.start_node(node.name)
        self.wait_for("all nodes idle", self._all_idle)

    def _all_idle(self) -> bool:
        # a node of several partitions has a line in each
        lines = set(self.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.splitlines())
        return lines == {f"{node.name} idle" for node in self.cluster.spec.nodes}
