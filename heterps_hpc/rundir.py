"""RunDir: the one place that knows every path of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from heterps_hpc.errors import UserError

MANIFEST_FILE = "manifest.json"  # written last: with it, a folder is a checkpoint
_OUT_OF_THE_WAY = "move it away, or choose another run directory with --run-dir"


class RunDir:
    """One directory per run: inputs frozen, outputs next to them."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(os.path.realpath(path))  # Path.resolve ends in a traceback at loops

    @property
    def job(self) -> Path:
        """The job as it was run, with absolute paths."""
        return self.path / "job.json"

    @property
    def cluster(self) -> Path:
        """The cluster as it was planned for."""
        return self.path / "cluster.json"

    @property
    def profile(self) -> Path:
        """Measured seconds and bytes."""
        return self.path / "profile.json"

    @property
    def layout(self) -> Path:
        """The plan bound to ranks."""
        return self.path / "layout.json"

    @property
    def schedulers(self) -> Path:
        """What the planner considered: learning curve, runners-up, frontier."""
        return self.path / "planning.json"

    @property
    def logs(self) -> Path:
        """One log per rank, and those of the launchers."""
        return self.path / "logs"

    def rank_log(self, rank: int) -> Path:
        """The log of one rank."""
        return self.logs / f"rank-{rank:05d}.log"

    @property
    def launcher_log(self) -> Path:
        """What mpirun and its ranks printed."""
        return self.logs / "launcher.log"

    @property
    def slurm_log(self) -> Path:
        """What a batch script printed; %j is the number of its job."""
        return self.logs / "slurm-%j.log"

    def launcher_logs(self) -> list[Path]:
        """The logs of all launchers, the newest last."""
        found = [*self.logs.glob("slurm-*.log"), *self.logs.glob(self.launcher_log.name)]
        return sorted(
            (path for path in found if path.is_file()), key=lambda path: path.stat().st_mtime
        )

    def stack(self, rank: int) -> Path:
        """Python stacks of one rank when nothing moved any more."""
        return self.logs / f"stack-{rank:05d}.txt"

    def stall_report(self, step: int) -> Path:
        """What every rank was doing when nothing moved any more."""
        return self.logs / f"stall-{step:09d}.txt"

    @property
    def metrics(self) -> Path:
        """One JSON object per line: training progress and evaluations."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """Totals of the run: throughput, bytes per link, time per phase."""
        return self.path / "summary.json"

    @property
    def baseline(self) -> Path:
        """What one feature alone would reach on the test data."""
        return self.path / "baseline.json"

    @property
    def trace(self) -> Path:
        """Timeline of some batches, in Chrome's trace format."""
        return self.path / "trace.json"

    @property
    def checkpoints(self) -> Path:
        """One directory per checkpoint."""
        return self.path / "checkpoints"

    def saved_steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        return steps_of(self.checkpoints)

    @property
    def heartbeats(self) -> Path:
        """One small file per node."""
        return self.path / "heartbeats"

    @property
    def script(self) -> Path:
        """The batch script as submitted."""
        return self.path / "job.sbatch"

    @property
    def history(self) -> Path:
        """Starts, restarts and ends, one JSON object per line."""
        return self.path / "history.jsonl"

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.path / "report.html"

    def measurement(self, name: str) -> RunDir:
        """The run directory of one measurement."""
        return RunDir(self.path / "measure" / name)

    @property
    def measured(self) -> Path:
        """Of a measurement: the seconds of every layer."""
        return self.path / "measured.json"

    @property
    def measured_for(self) -> Path:
        """Of a measurement: what it depended on, so that it is used again only for the same."""
        return self.path / "measured_for.json"

    @property
    def measured_links(self) -> Path:
        """Of a measurement: latency and bandwidth between pools."""
        return self.path / "links.json"

    def trial(self, name: str) -> RunDir:
        """The run directory of one plan that is tried before the job proper."""
        return RunDir(self.path / "trials" / name)

    @property
    def tried(self) -> Path:
        """Of a trial: its throughput."""
        return self.path / "tried.json"

    @property
    def prediction(self) -> RunDir:
        """The run directory of scoring."""
        return RunDir(self.path / "predict")

    def inner_runs(self) -> dict[str, list[RunDir]]:
        """The runs inside of this one, by what they were for."""
        return {
            "measuring": [RunDir(path) for path in self.measurement("x").path.parent.glob("*")],
            "trials": [RunDir(path) for path in self.trial("x").path.parent.glob("*")],
            "scoring": [self.prediction],
        }

    @property
    def scores(self) -> Path:
        """Of scoring: one score per sample."""
        return self.path / "scores.h5"

    @property
    def lock(self) -> Path:
        """Locked by the `heterps` that uses the directory; see run_lock.py."""
        return self.path / ".lock"

    @property
    def rank_lock(self) -> Path:
        """Locked by every rank of the run."""
        return self.path / ".ranks.lock"

    def create(self, remedy: str = "choose another with --run-dir") -> Self:
        """Make the directory, or explain why it cannot be made."""
        try:
            for folder in (self.path, self.logs, self.checkpoints, self.heartbeats):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be the run directory: {error.filename}: {error.strerror}; "
                f"{remedy}"
            ) from None
        if not os.access(self.path, os.W_OK):
            raise UserError(f"{self.path}: no permission to write; {remedy}")
        return self

    def check_usable(self, num_ranks: int = 0) -> None:
        """Refuse, before ranks are started, what would end them one by one with a traceback."""
        for folder in (self.logs, self.checkpoints, self.heartbeats):
            if folder.exists() and not folder.is_dir():
                raise UserError(f"{folder}: is a file, expected a directory; {_OUT_OF_THE_WAY}")
        inputs = (self.job, self.cluster, self.profile, self.layout, self.schedulers)
        outputs = (self.history, self.metrics, self.summary, self.trace, self.report)
        private = (self.launcher_log, self.lock, self.rank_lock, *self.heartbeats.glob("*"))
        logs = (self.rank_log(rank) for rank in range(num_ranks))
        manifests = (each / MANIFEST_FILE for each in numbered_folders(self.checkpoints))
        for path in (*inputs, *outputs, *private, *logs, *manifests):
            _refuse_other_than_file(path)
        probe = self.path / f".probe-{os.getpid()}"
        try:
            with probe.open("wb") as file:
                file.write(b"\0" * 4096)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written: {error.strerror}; make space, or choose another "
                "run directory with --run-dir"
            ) from None
        finally:
            with suppress(OSError):  # of a read-only file system, even if it is not there
                probe.unlink()


def _refuse_other_than_file(path: Path) -> None:
    """Reading a pipe or a device may never end; a folder gives a traceback."""
    if path.exists() and not path.is_file():
        what = "a directory" if path.is_dir() else "a pipe or a device"
        raise UserError(f"{path}: is {what}, expected a file; {_OUT_OF_THE_WAY}")


def steps_of(checkpoints: Path) -> list[int]:
    """Steps of all complete checkpoints, oldest first."""
    folders = numbered_folders(checkpoints)
    return sorted(int(each.name) for each in folders if (each / MANIFEST_FILE).is_file())


def numbered_folders(checkpoints: Path) -> Iterator[Path]:
    """Folders named by a step, complete or not; anything else in there is not ours."""
    try:
        folders = sorted(checkpoints.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for folder in folders:
        name = folder.name
        if name.isascii() and name.isdigit() and name == step_name(int(name)) and folder.is_dir():
            yield folder


def step_name(step: int) -> str:
    """The name of the folder of a checkpoint."""
    return f"{step:09d}"
