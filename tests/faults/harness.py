"""`heterps run` as users start it, to be ended at any moment, and all that it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from heterps_hpc import events
from heterps_hpc.checkpoint import newest
from heterps_hpc.checkpoint.verify import verify
from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from tests.equivalence import cases
from tests.equivalence.cases import Case, make_layout, make_model
from tests.equivalence.click_log import write_click_log
from tests.faults.runs import Learned, different_bits, learned

MARK = "HETERPS_HARNESS"
JOB: dict[str, Any] = {
    "name": "harness",
    "model": {"name": "ctrdnn", "embedding_dim": 4, "hidden": [9, 5]},
    "measure": {"batches": 2, "warmup": 1, "rank_counts": [1]},
    "plan": {"scheduler": "exact", "seconds": 1},
    "launch": {"oversubscribe": True},
}
TRAIN: dict[str, Any] = {
    "batch_size": 40,
    "epochs": None,
    "reducer": "mpi",
    "tables": {"num_partitions": cases.NUM_PARTITIONS},
}
# one rank on one pool: whatever was measured, the plan is the same, and so are the bits
ONE_RANK = Cluster(pools=(Pool(name="cpu", price_per_hour=1.0, max_ranks=1, cores_per_node=1),))
TIMES = ("seconds", "samples_per_second")  # what differs from run to run

PHASES: dict[str, Callable[[RunDir], bool]] = {
    "start-up": lambda run: run.job.exists(),
    "measure": lambda run: any((run.path / "measure").glob("*/history.jsonl")),
    "plan": lambda run: run.profile.exists(),
    "launch": lambda run: events.read(run).was_launched,
    "train": lambda run: run.rank_log(0).exists(),
    "save": lambda run: any(run.checkpoints.glob("0*")),
    "evaluation": lambda run: run.metrics.exists() and "evaluation" in run.metrics.read_text(),
    "end": lambda run: run.summary.exists(),
}


@dataclass(frozen=True)
class Started:
    """One `heterps` and everything that it starts, which carries a mark."""

    process: subprocess.Popen[str]
    mark: str

    def end(self, timeout: float = 240) -> tuple[int, str]:
        """Wait for its end: exit code and what it printed; nothing is left of one that hangs."""
        try:
            printed, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for process, _ in list(self.family()):
                with suppress(psutil.Error):
                    process.kill()
            raise
        return self.process.returncode, printed

    def left(self, seconds: float = 10) -> list[psutil.Process]:
        """What is still there after so many seconds."""
        give_up = time.monotonic() + seconds
        while (found := [process for process, _ in self.family()]) and time.monotonic() < give_up:
            time.sleep(0.1)
        return found

    def family(self) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
        """Everything that it started, and itself."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                environment = process.environ()
                if environment.get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process, environment

    def signal_ranks(self, number: signal.Signals) -> None:
        """A signal to all ranks."""
        for process, environment in self.family():
            if "PMI_RANK" in environment or "PMIX_RANK" in environment:
                with suppress(psutil.Error):
                    process.send_signal(number)

    def signal_mpirun(self, number: signal.Signals) -> None:
        """A signal to mpirun."""
        for process, _ in self.family():
            with suppress(psutil.Error):
                if "mpirun" in " ".join(process.cmdline()[:2]):
                    process.send_signal(number)


@dataclass
class Setting:
    """A job to run again and again, and what comes of it when nothing happens."""

    job: Path
    layout: Layout | None  # None: measured and planned by the run
    steps: int
    learned: Learned = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    began: dict[str, float] = field(default_factory=dict)  # seconds from the start, by phase

    def new_run(self, path: Path) -> RunDir:
        """A run directory that has not been started."""
        run = RunDir(path)
        if self.layout is not None:
            self.layout.save(run.create().layout)
        return run

    def arguments(self, run: RunDir, *, again: bool = False) -> list[str]:
        """What `heterps` is started with; a layout that is there already is resumed."""
        if again and self.layout is not None:
            return ["launch", str(run.path), "--resume"]
        options = ["--resume"] if again or self.layout is not None else []
        return ["run", str(self.job), "--run-dir", str(run.path), *options]

    def start(
        self, run: RunDir, *, again: bool = False, environment: Mapping[str, str] | None = None
    ) -> Started:
        """Start `heterps run`."""
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            [sys.executable, "-m", "heterps_hpc.cli", *self.arguments(run, again=again)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {}), MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return Started(process, mark)

    def run_undisturbed(self, path: Path) -> None:
        """Note what the job learns and reports, and when its phases begin."""
        run = self.new_run(path)
        begin = time.monotonic()
        started = self.start(run)
        while started.process.poll() is None:
            for phase, has_begun in PHASES.items():
                if phase not in self.began and has_begun(run):
                    self.began[phase] = time.monotonic() - begin
            time.sleep(0.01)
        code, printed = started.end()
        assert code == 0, printed
        self.began["over"] = time.monotonic() - begin
        self.note(run)

    def note(self, run: RunDir) -> None:
        """What an undisturbed run has learned and reported."""
        self.learned, self.metrics = _learned(run), _metrics(run)

    def length(self, phase: str) -> float:
        """Seconds from the beginning of a phase to that of the next."""
        return min(t for t in self.began.values() if t > self.began[phase]) - self.began[phase]

    def problems(self, run: RunDir) -> list[str]:
        """In what a run that is called done differs from an undisturbed one."""
        found = newest(run.checkpoints)
        if found is None or found.step != self.steps:
            return [f"the newest checkpoint is of step {found and found.step}"]
        problems = [f"{name} differs" for name in different_bits(_learned(run), self.learned)]
        problems += verify(found).problems
        if (lines := _metrics(run)) != self.metrics:
            problems.append(f"metrics.jsonl is not that of one run: {lines}")
        return problems


def damaged_checkpoints(run: RunDir) -> list[str]:
    """What is wrong with the checkpoint that a run would continue from."""
    found = newest(run.checkpoints)
    return [] if found is None else verify(found).problems


def make_setting(
    folder: Path, shape: str | None, *, steps: int, every: int, **train: Any
) -> Setting:
    """A job that saves every few steps; a shape is one of the equivalence suite, None: plan it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_click_log(folder / "train")
    write_click_log(folder / "test", seed=8)
    (ONE_RANK if shape is None else cases.CLUSTER).save(folder / "cluster.json")
    described = {
        **JOB,
        "data": {"train": str(folder / "train"), "test": str(folder / "test")},
        "cluster": str(folder / "cluster.json"),
        "train": {**TRAIN, "steps": steps, **train},
        "checkpoint": {"every_steps": every, "keep": 2},
    }
    path = folder / "job.json"
    path.write_text(json.dumps(described))
    if shape is None:
        return Setting(path, None, steps)
    job = Job.load(path)
    model = make_model(job, Dataset.open(job.data.train).manifest)
    case = Case("ctrdnn", shape, 1, job.train.staleness, "float32", "plain")
    return Setting(path, make_layout(case, job, model), steps)


def _learned(run: RunDir) -> Learned:
    found = newest(run.checkpoints)
    assert found is not None
    return learned(found)


def _metrics(run: RunDir) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [{name: v for name, v in line.items() if name not in TIMES} for line in lines]
