"""Submit small programs through the launcher itself, and look at what really started."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_hpc import events
from heterps_hpc.cluster import Cluster
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.progress import newest_metrics
from heterps_hpc.launch.restart_policy import allows_restart
from heterps_hpc.launch.slurm.job_state import state
from heterps_hpc.launch.slurm.launcher import SlurmLauncher
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from tests.launch.values import BEHAVE, ROOT, cpu_pool, gpu_pool, make_cluster, make_job
from tests.slurm.client import SlurmClient

FAST = SlurmLauncher(poll_seconds=0.3)
SITE = {
    "environment": {"PYTHONPATH": str(ROOT), "HETERPS_WATCH_SECONDS": "2"},
}
CLUSTER = make_cluster(
    cpu_pool(),
    gpu_pool(),
    cpu_pool(name="big", partition="mem", max_nodes=1, memory_per_node_gb=4.0),
    **SITE,
)
# a rank per node: few processes on few cores, and a node less is a rank less
ONE_PER_NODE = CLUSTER.model_copy(
    update={
        "pools": tuple(
            CLUSTER.pool(name).model_copy(
                update={"cores_per_rank": CLUSTER.pool(name).cores_per_node}
            )
            for name in ("cpu", "gpu")
        )
    }
)


@dataclass
class Launched:
    """A job that the launcher submitted."""

    request: LaunchRequest
    job_id: int
    slurm: SlurmClient

    @property
    def run(self) -> RunDir:
        return self.request.run

    def wait(self, seconds: float = 60.0) -> ExitCode:
        return FAST.follow(self.request, limit_seconds=seconds)

    def wait_with_restarts(self, seconds: float = 150.0) -> ExitCode:
        """As `heterps launch` does: what Slurm cannot requeue is submitted again."""
        code = self.wait(seconds)
        max_restarts = self.request.job.launch.max_restarts
        while allows_restart(events.read(self.run), code, max_restarts):
            self.job_id = FAST.queue(self.request)
            self.slurm.jobs.append(self.job_id)
            code = self.wait(seconds)
        return code

    def rank_infos(self, restart: int = 0) -> list[dict[str, Any]]:
        files = sorted(self.run.path.glob(f"rank-*-{restart}.json"))
        return [json.loads(file.read_text()) for file in files]

    def wait_for_ranks(self, num_ranks: int, restart: int = 0) -> None:
        """Until that many ranks have met in one barrier."""
        self.slurm.wait_for(
            f"{num_ranks} ranks of start {restart}",
            lambda: len(self.rank_infos(restart)) == num_ranks,
        )

    def wait_for_watcher(self) -> None:
        """Until the step of component 1 runs that outlives the leader's node."""
        component = f"--jobs={self.job_id + 1}"
        names = ("squeue", "--steps", "--noheader", component, "--format=%j")
        self.slurm.wait_for("the watcher", lambda: "bash" in self.slurm.run(*names).stdout, 30)

    def wait_for_step(self, step: int) -> None:
        """Until training has reached a step."""

        def reached() -> bool:
            records = newest_metrics(self.run.metrics).values()
            return any(int(record["step"]) >= step for record in records)

        self.slurm.wait_for(f"step {step}", reached)

    def skip_the_delay(self) -> None:
        """Slurm holds a requeued job back for two minutes; start it soon."""
        self.slurm.wait_for("all components queued again", self.queued_again)
        self.slurm.start_soon(self.job_id)

    def queued_again(self) -> bool:
        """Whether all components wait for another start."""
        now = state(self.job_id)
        assert now is not None
        return all(part.waiting and part.restarts for part in now.components)

    def node_of(self, component: int) -> str:
        """The node (or nodes) that Slurm gave a component."""
        now = state(self.job_id)
        assert now is not None
        return now.components[component].nodes

    def events(self) -> list[str]:
        return [event.kind for event in events.read(self.run).events]

    def log(self) -> str:
        return "".join(file.read_text() for file in sorted(self.run.logs.glob("slurm-*.log")))


def launch(
    slurm: SlurmClient,
    directory: Path,
    layout: Layout,
    orders: dict[str, Any],
    *,
    cluster: Cluster = CLUSTER,
    name: str = "test",
    **limits: Any,
) -> Launched:
    """Submit a layout whose ranks behave as ordered."""
    run = RunDir(directory).create()
    job = make_job(name, **{"time_limit_minutes": 5, **limits})
    job.save(run.job)
    (run.path / "behave.json").write_text(json.dumps(orders))
    return submit(slurm, LaunchRequest(run, layout, job, cluster, BEHAVE))


def submit(slurm: SlurmClient, request: LaunchRequest) -> Launched:
    """Queue a job; it is cancelled with the test's."""
    job_id = SlurmLauncher().queue(request)
    slurm.jobs.append(job_id)
    return Launched(request, job_id, slurm)
