"""From the command to the first batch, by mpirun and by Slurm, and what of that is our own.

`python -m benchmarks.launch [--quick] [--json FILE]`; quick: the two overheads, which have goals.

The launchers are compared with the bare tools that they call, on ranks that only meet once. For
Slurm a development cluster is started; without Slurm's programs that half is left out, loudly.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.record import Report, alternating_medians, standard_options
from data_prep.synthetic import ensure_synthetic
from heterps_hpc.cluster import Cluster, Pool, Site
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.launch.mpi import find_mpi, mpi_environment
from heterps_hpc.launch.slurm.job_state import state
from heterps_hpc.launch.slurm.launcher import SlurmLauncher
from heterps_hpc.layout import Layout, Stage
from heterps_hpc.models import build_model
from heterps_hpc.rundir import RunDir
from heterps_hpc.sharding import bind_plan
from slurm.dev_cluster.cluster import DevCluster, missing_programs
from slurm.dev_cluster.guard import guarded
from slurm.dev_cluster.spec import ClusterSpec, can_isolate

ROOT = Path(__file__).resolve().parents[1]
RANK = "benchmarks.launch_rank"
LIMIT_SECONDS = 120.0
PORT = 26_000 + os.getpid() % 1000
IMPORTS = {
    "rank program": "import heterps_hpc.runtime.rank_main",
    "heterps command": "import heterps_hpc.cli",
    "launchers": "import heterps_hpc.launch.local, heterps_hpc.launch.slurm.launcher",
}


def main() -> None:
    """Measure and report."""
    options = standard_options(__doc__).parse_args()
    repeats = 1 if options.quick else 3
    report = Report("launch", "Launching: command to first batch, and our share of it")
    with tempfile.TemporaryDirectory(prefix="hl-", dir="/tmp") as folder:
        bench = LaunchBench(Path(folder), repeats, quick=options.quick)
        if not options.quick:
            imports(report, repeats)
        on_this_machine(report, bench)
        on_slurm(report, bench)
    report.finish(options.json)


class LaunchBench:
    """A tiny job with a layout of one sparse and one dense rank."""

    def __init__(self, folder: Path, repeats: int, *, quick: bool) -> None:
        self.folder = folder
        self.repeats = repeats
        self.quick = quick
        self.count = 0
        self.cluster = Cluster(
            pools=tuple(
                Pool(
                    name=name,
                    partition=name,
                    price_per_hour=1,
                    max_nodes=1,
                    cores_per_node=2,
                    memory_per_node_gb=1,
                )
                for name in ("cpu", "gpu")
            ),
            site=Site(environment={"PYTHONPATH": str(ROOT)}),
        )
        self.job = Job.parse(
            {
                "name": "launch-bench",
                "model": {"name": "ctrdnn", "embedding_dim": 4, "hidden": [8]},
                "data": {
                    "train": str(folder / "train"),
                    "synthetic": {"train_rows": 2000, "num_slots": 4, "cardinality": 50},
                },
                "train": {"batch_size": 64, "steps": 3, "metrics_every": 1},
                "checkpoint": {"at_end": False},
                "launch": {"oversubscribe": True, "time_limit_minutes": 5},
            },
            "launch benchmark",
        )
        assert self.job.data.synthetic is not None
        ensure_synthetic(self.job.data.synthetic, self.job.data.train, None)

    def prepare(self) -> tuple[RunDir, Layout]:
        """A fresh run directory, planned."""
        self.count += 1
        run = RunDir(self.folder / f"run{self.count}").create()
        model = build_model(self.job.model, Dataset.open(self.job.data.train).manifest)
        first, *rest = (layer.name for layer in model.layers)
        layout = bind_plan(
            (
                Stage(pool="cpu", layers=(first,), num_ranks=1),
                Stage(pool="gpu", layers=tuple(rest), num_ranks=1),
            ),
            model=model,
            cluster=self.cluster,
            job=self.job.name,
            num_partitions=self.job.train.tables.num_partitions,
        )
        self.job.save(run.job)
        self.cluster.save(run.cluster)
        layout.save(run.layout)
        return run, layout

    def add_first_batch(self, report: Report, on: str) -> None:
        """Median of some launches; nothing that has a goal, so left out when in a hurry."""
        if not self.quick:
            seconds = statistics.median(self.first_batch_seconds(on) for _ in range(self.repeats))
            report.add(f"{on}: heterps launch to first batch", seconds, "s")

    def first_batch_seconds(self, on: str) -> float:
        """From `heterps launch` to the first line of metrics."""
        run, _ = self.prepare()
        command = [sys.executable, "-m", "heterps_hpc.cli", "launch", "--on", on, str(run.path)]
        started = time.perf_counter()
        with (self.folder / "launch.log").open("w") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            try:
                while not (run.metrics.exists() and run.metrics.stat().st_size):
                    if time.perf_counter() - started > LIMIT_SECONDS or process.poll():
                        words = (self.folder / "launch.log").read_text()
                        raise RuntimeError(f"no first batch by {on}:\n{words}")
                    time.sleep(0.005)
                seconds = time.perf_counter() - started
                process.wait(LIMIT_SECONDS)
            finally:
                process.terminate()
        return seconds


def imports(report: Report, repeats: int) -> None:
    """What every rank and every command pays before it does anything."""
    work = {name: functools.partial(_python, code) for name, code in IMPORTS.items()}
    medians = alternating_medians({"nothing": functools.partial(_python, "pass"), **work}, repeats)
    for name in IMPORTS:
        report.add(f"import of the {name}", medians[name] - medians["nothing"], "s")


def on_this_machine(report: Report, bench: LaunchBench) -> None:
    """mpirun alone, then through the launcher."""
    mpi = find_mpi()
    variables = {**os.environ, **mpi_environment(mpi.flavour, "local"), "PYTHONPATH": str(ROOT)}

    def bare() -> float:
        run, _ = bench.prepare()
        command = [mpi.mpirun, "-n", "2", sys.executable, "-m", "mpi4py", "-m", RANK, run.path]
        started = time.time()
        subprocess.run(command, env=variables, check=True, timeout=LIMIT_SECONDS)
        return _met(run, started)

    def ours() -> float:
        run, layout = bench.prepare()
        started = time.time()
        launcher = LocalLauncher(environment={"PYTHONPATH": str(ROOT)})
        code = launcher.start(LaunchRequest(run, layout, bench.job, bench.cluster, RANK))
        assert code == 0
        return _met(run, started)

    _compare(report, "mpirun", bare, ours, bench.repeats)
    bench.add_first_batch(report, "local")


def on_slurm(report: Report, bench: LaunchBench) -> None:
    """sbatch and srun alone, then through the launcher, on a development cluster."""
    spec = ClusterSpec(bench.folder / "s", PORT, isolate=can_isolate())
    if missing := missing_programs(spec):
        report.notes.append(f"NOT MEASURED on Slurm: no {', '.join(missing)}")
        return
    with guarded(DevCluster(spec)):
        os.environ.update({name: spec.environment()[name] for name in ("PATH", "SLURM_CONF")})

        def bare() -> float:
            run, _ = bench.prepare()
            command = f"{sys.executable} -m mpi4py -m {RANK} {run.path}"
            run.script.write_text(BARE.format(folder=run.path, root=ROOT, command=command))
            started = time.time()
            _until_ended(int(slurm_call("sbatch", "--parsable", str(run.script))))
            return _met(run, started)

        def ours() -> float:
            run, layout = bench.prepare()
            started = time.time()
            _until_ended(
                SlurmLauncher().queue(LaunchRequest(run, layout, bench.job, bench.cluster, RANK))
            )
            return _met(run, started)

        _compare(report, "sbatch and srun", bare, ours, bench.repeats)
        bench.add_first_batch(report, "slurm")
    report.notes.append("Slurm's scheduler looks for jobs of several components once a second.")


BARE = """#!/bin/bash
#SBATCH --output={folder}/bare.log --time=5
#SBATCH --partition=cpu --nodes=1 --ntasks=1
#SBATCH hetjob
#SBATCH --partition=gpu --nodes=1 --ntasks=1
export PYTHONPATH={root}
srun --mpi=pmi2 --het-group=0 {command} : --het-group=1 {command}
"""


def _met(run: RunDir, started: float) -> float:
    """Seconds until the ranks had met."""
    return (run.path / "met").stat().st_mtime - started


def _compare(
    report: Report, tool: str, bare: Callable[[], float], ours: Callable[[], float], repeats: int
) -> None:
    """Alternate the two, so that a busy machine troubles both alike."""
    pairs = [(bare(), ours()) for _ in range(1 + repeats)][1:]
    without, with_us = (statistics.median(times) for times in zip(*pairs, strict=True))
    report.add(f"{tool} alone, until ranks have met", without, "s")
    report.add(f"overhead beyond {tool}", with_us - without, "s", "<= 1")


def _until_ended(job_id: int) -> None:
    give_up = time.monotonic() + LIMIT_SECONDS
    while True:
        now = state(job_id)
        if now is None or now.ended:
            break
        if time.monotonic() > give_up:
            raise RuntimeError(f"job {job_id} does not end: {now}")
        time.sleep(0.02)
    if now is not None and any(part.exit_code for part in now.components):
        raise RuntimeError(f"job {job_id} failed: {now}")


def slurm_call(*command: str) -> str:
    """A Slurm program's answer."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=LIMIT_SECONDS)


if __name__ == "__main__":
    main()
