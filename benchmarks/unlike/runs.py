"""Measuring and running on one cluster; every result is a file, so that a stopped benchmark
continues where it was."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.unlike.cases import BATCH_SIZE, Work, make_job, parse_layout
from benchmarks.unlike.one_job import OneJob
from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.measure import measure
from heterps_hpc.commands.prepare import model_of, ready_data
from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import Launcher, LaunchRequest, Listener
from heterps_hpc.layout import Estimate
from heterps_hpc.model import Model
from heterps_hpc.plan.cost_model import StageTable, estimate, to_plan
from heterps_hpc.plan.problem import make_problem
from heterps_hpc.profile import Profile
from heterps_hpc.rundir import RunDir
from heterps_hpc.sharding import bind_plan
from slurm.dev_cluster.cluster import DevCluster
from slurm.dev_cluster.guard import guarded
from slurm.dev_cluster.nodes_file import find_nodes_file, load_nodes
from slurm.dev_cluster.spec import ClusterSpec

ROOT = Path(__file__).resolve().parents[2]
PORT = 24_000 + os.getpid() % 1000
LINES = 6  # of metrics per run, each of whole epochs; the first two are start-up
EPOCH = 4  # batches: few, so that reading has its part in every line


@contextmanager
def cluster_up(name: str) -> Iterator[Cluster]:
    """A cluster of unlike nodes for as long as the block runs, and its pools."""
    nodes = load_nodes(find_nodes_file(name))
    spec = ClusterSpec(Path(f"/tmp/hb-{os.getpid()}"), PORT, nodes.nodes)
    own = {key: os.environ.get(key, "") for key in ("PATH", "SLURM_CONF")}
    with guarded(DevCluster(spec)):
        os.environ.update({key: spec.environment()[key] for key in own})
        try:
            yield pools_of(name)
        finally:
            os.environ.update(own)


def pools_of(name: str) -> Cluster:
    """The cluster file that fits a file of nodes; ranks run the code of this tree."""
    data = yaml.safe_load(load_nodes(find_nodes_file(name)).cluster_file())
    return Cluster.parse(data | {"site": {"environment": {"PYTHONPATH": str(ROOT)}}}, name)


class LayoutRun(NamedTuple):
    """A layout, run for the so-many-th time."""

    text: str
    repeat: int


@dataclass(frozen=True)
class Bench:
    """One workload on one cluster."""

    cluster_name: str
    work: Work
    folder: Path
    num_rows: int = EPOCH * BATCH_SIZE
    measured_batches: int = 16

    @property
    def here(self) -> Path:
        return self.folder / self.cluster_name / self.work.name

    @property
    def job(self) -> Job:
        return make_job(self.work, self.folder / "data", self.num_rows, self.measured_batches)

    @property
    def model(self) -> Model:
        """Its data are generated on first use."""
        return model_of(self.job, ready_data(self.job))

    def one_job(self, cluster: Cluster) -> OneJob:
        """A launcher that keeps all nodes for everything that is run on them."""
        run = RunDir(self.folder / self.cluster_name / f"job-{time.time_ns()}")
        return OneJob(run, cluster, self.job, self.model)

    @property
    def profile_path(self) -> Path:
        return self.here / "profile.json"

    def measure(self, cluster: Cluster, launcher: Launcher) -> Profile:
        """The profile, taken once."""
        if not self.profile_path.exists():
            ready_data(self.job)
            run = RunDir(self.here / "measured").create()
            measure(self.job, cluster, run, launcher, again=True).save(self.profile_path)
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

    def run_folder(self, run: LayoutRun) -> Path:
        name = run.text.replace(":", "-").replace(" ", "_").replace("*", "all")
        return self.here / f"{name}.{run.repeat}"

    def is_done(self, run: LayoutRun) -> bool:
        return RunDir(self.run_folder(run)).summary.exists()

    def train(self, cluster: Cluster, launcher: Launcher, run: LayoutRun, seconds: float) -> None:
        """Train a layout for about so many seconds."""
        profile = Profile.load(self.profile_path)
        predicted = self.predict(cluster, profile, run.text).samples_per_second
        every = EPOCH * max(1, round(seconds * predicted / BATCH_SIZE / LINES / EPOCH))
        short = {"steps": every * LINES, "epochs": None, "metrics_every": every}
        job = self.job.model_copy(update={"train": self.job.train.model_copy(update=short)})
        choices = parse_layout(run.text, cluster, len(profile.layers))
        plan = to_plan(self.table(cluster, profile), choices, "given")
        layout = bind_plan(
            plan.stages,
            model=self.model,
            cluster=cluster,
            job=job.name,
            num_partitions=job.train.tables.num_partitions,
            table_loads=profile.table_loads,
            plan=plan,
        )
        folder = RunDir(self.run_folder(run)).create()
        for name, value in (("job", job), ("cluster", cluster), ("layout", layout)):
            value.save(getattr(folder, name))
        folder.metrics.unlink(missing_ok=True)
        code = launcher.start(LaunchRequest(folder, layout, job, cluster), Listener())
        if code != ExitCode.DONE:
            raise RuntimeError(f"{run.text} on {self.cluster_name} ended with code {int(code)}")

    def rate(self, run: LayoutRun) -> float:
        """Samples per second of a finished run: the median of its metrics without the start."""
        lines = RunDir(self.run_folder(run)).metrics.read_text().splitlines()
        rates = [json.loads(line)["samples_per_second"] for line in lines]
        return float(statistics.median(rates[2:]))
