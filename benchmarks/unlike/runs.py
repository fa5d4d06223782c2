"""Measuring and running on one cluster; every result is a file, so that a stopped benchmark
continues where it was."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.unlike.cases import BATCH_SIZE, Work, make_job, parse_layout
from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.measure import measure
from heterps_hpc.commands.prepare import model_of, ready_data
from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.slurm.launcher import SlurmLauncher
from heterps_hpc.layout import Estimate
from heterps_hpc.plan.cost_model import StageTable, estimate, to_plan
from heterps_hpc.plan.problem import make_problem
from heterps_hpc.profile import Profile
from heterps_hpc.rundir import RunDir
from heterps_hpc.sharding import bind_plan
from slurm.dev_cluster.cluster import Cluster as DevCluster
from slurm.dev_cluster.guard import start_guard
from slurm.dev_cluster.nodes_file import find_nodes_file, load_nodes
from slurm.dev_cluster.spec import ClusterSpec

ROOT = Path(__file__).resolve().parents[2]
PORT = 24_000 + os.getpid() % 1000
LINES = 8  # of metrics per run; the first two are start-up


@contextmanager
def cluster_up(name: str) -> Iterator[Cluster]:
    """A cluster of unlike nodes for as long as the block runs, and its pools."""
    nodes = load_nodes(find_nodes_file(name))
    spec = ClusterSpec(Path(f"/tmp/hb-{os.getpid()}"), PORT, nodes.nodes)
    dev = DevCluster(spec)
    dev.up()
    start_guard(dev, os.getpid())
    own = {key: os.environ.get(key, "") for key in ("PATH", "SLURM_CONF")}
    os.environ.update({key: spec.environment()[key] for key in own})
    try:
        yield pools_of(name)
    finally:
        os.environ.update(own)
        dev.down()


def pools_of(name: str) -> Cluster:
    """The cluster file that fits a file of nodes; ranks run the code of this tree."""
    data = yaml.safe_load(load_nodes(find_nodes_file(name)).cluster_file())
    return Cluster.parse(data | {"site": {"environment": {"PYTHONPATH": str(ROOT)}}}, name)


@dataclass(frozen=True)
class Bench:
    """One workload on one cluster."""

    cluster_name: str
    work: Work
    folder: Path
    num_rows: int = 120_000
    measured_batches: int = 16

    @property
    def here(self) -> Path:
        return self.folder / self.cluster_name / self.work.name

    @property
    def job(self) -> Job:
        return make_job(self.work, self.folder / "data", self.num_rows, self.measured_batches)

    @property
    def profile_path(self) -> Path:
        return self.here / "profile.json"

    def measure(self, cluster: Cluster) -> Profile:
        """The profile, taken once."""
        if not self.profile_path.exists():
            ready_data(self.job)
            run = RunDir(self.here / "measured").create()
            measure(self.job, cluster, run, SlurmLauncher()).save(self.profile_path)
        return Profile.load(self.profile_path)

    def table(self, cluster: Cluster, profile: Profile) -> StageTable:
        """The cost model of this workload."""
        train = self.job.train
        problem = make_problem(
            profile,
            cluster,
            batch_size=train.batch_size,
            num_samples=1e6,
            micro_batches=train.micro_batches,
            staleness=train.staleness,
        )
        return StageTable(problem)

    def predict(self, cluster: Cluster, profile: Profile, text: str) -> Estimate:
        """What the cost model says of a layout."""
        table = self.table(cluster, profile)
        return estimate(table, parse_layout(text, cluster, len(profile.layers)))

    def run_folder(self, text: str, repeat: int) -> Path:
        return (
            self.here / f"{text.replace(':', '-').replace(' ', '_').replace('*', 'all')}.{repeat}"
        )

    def is_done(self, text: str, repeat: int) -> bool:
        return RunDir(self.run_folder(text, repeat)).summary.exists()

    def run(
        self, cluster: Cluster, profile: Profile, text: str, repeat: int, seconds: float
    ) -> None:
        """Train the layout on the cluster for about so many seconds."""
        predicted = self.predict(cluster, profile, text).samples_per_second
        steps = max(6 * LINES, round(seconds * predicted / BATCH_SIZE))
        steps -= steps % LINES
        short = {"steps": steps, "epochs": None, "metrics_every": steps // LINES}
        job = self.job.model_copy(
            update={"train": self.job.train.model_copy(update=short), "name": f"{self.work.name}"}
        )
        plan = to_plan(
            self.table(cluster, profile), parse_layout(text, cluster, len(profile.layers)), "given"
        )
        layout = bind_plan(
            plan.stages,
            model=model_of(job, ready_data(job)),
            cluster=cluster,
            job=job.name,
            num_partitions=job.train.tables.num_partitions,
            table_loads=profile.table_loads,
            plan=plan,
        )
        run = RunDir(self.run_folder(text, repeat)).create()
        for name, value in (("job", job), ("cluster", cluster), ("layout", layout)):
            value.save(getattr(run, name))
        run.metrics.unlink(missing_ok=True)
        request = LaunchRequest(run, layout, job, cluster)
        launcher = SlurmLauncher(poll_seconds=0.5)
        launcher.queue(request)
        code = launcher.follow(request, limit_seconds=600)
        if code != ExitCode.DONE:
            raise RuntimeError(
                f"{text} on {self.cluster_name} ended with code {int(code)}: {run.logs}"
            )

    def rate(self, text: str, repeat: int) -> float:
        """Samples per second of a finished run: the median of its metrics without the start."""
        lines = RunDir(self.run_folder(text, repeat)).metrics.read_text().splitlines()
        rates = [json.loads(line)["samples_per_second"] for line in lines]
        return float(statistics.median(rates[2:]))
