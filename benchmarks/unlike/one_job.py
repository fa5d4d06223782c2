"""A launcher whose starts share one Slurm job on all nodes of a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.unlike.requests import Requests
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, Listener
from heterps_hpc.launch.slurm.job_state import state
from heterps_hpc.launch.slurm.launcher import SlurmLauncher
from heterps_hpc.layout import Stage
from heterps_hpc.model import Model
from heterps_hpc.rundir import RunDir
from heterps_hpc.sharding import bind_plan

PROGRAM = "benchmarks.unlike.program"
_POLL_SECONDS = 0.2
_ASK_SLURM_EVERY = 25  # polls
_LIMIT_SECONDS = 120.0


class OneJob(SlurmLauncher):
    """Starts ranks within a job that is there already."""

    def __init__(self, run: RunDir, cluster: Cluster, job: Job, model: Model) -> None:
        """Submit the job: all ranks of all pools."""
        super().__init__(poll_seconds=0.5)
        self._run = run.create()
        self._requests, self._number = Requests(run.path), 0
        layers = [layer.name for layer in model.layers]
        world = bind_plan(
            _all_nodes(cluster, layers),
            model=model,
            cluster=cluster,
            job="unlike",
            num_partitions=job.train.tables.num_partitions,
        )
        for name, value in (("job", job), ("cluster", cluster), ("layout", world)):
            value.save(getattr(run, name))
        self._request = LaunchRequest(run, world, job, cluster, PROGRAM)
        self._job_id = self.queue(self._request)

    def start(self, request: LaunchRequest, listener: Listener = Listener()) -> ExitCode:  # noqa: B008
        """Have the job run the program, and wait until it is done."""
        layout = self._run.path / f"layout-{self._number}.json"
        request.layout.save(layout)
        self._requests.ask(self._number, request.program, request.run.path, layout)
        give_up = time.monotonic() + _LIMIT_SECONDS
        polls = 0
        while not self._requests.is_done(self._number):
            polls += 1
            if polls % _ASK_SLURM_EVERY == 0 and not self._is_running():
                return ExitCode.RANK_FAILED
            if time.monotonic() > give_up:
                raise RuntimeError(f"no answer within {_LIMIT_SECONDS:.0f} s: {self._run.logs}")
            time.sleep(_POLL_SECONDS)
        self._number += 1
        return ExitCode.DONE

    def end(self) -> None:
        """No more requests."""
        self._requests.ask_to_end(self._number)

    def _is_running(self) -> bool:
        now = state(self._job_id)
        return now is not None and not now.ended


def _all_nodes(cluster: Cluster, layers: Sequence[str]) -> tuple[Stage, ...]:
    """Stages that take every rank of every pool."""
    last = len(cluster.pools) - 1
    return tuple(
        Stage(
            pool=pool.name,
            layers=tuple(layers[index:] if index == last else layers[index : index + 1]),
            num_ranks=pool.rank_limit,
        )
        for index, pool in enumerate(cluster.pools)
    )
