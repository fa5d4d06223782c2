"""RunDir: the one place that knows every path of a run, and who may write there."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from heterps_hpc.errors import UserError


class RunDir:
    """One directory per run: inputs frozen, outputs beside them."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).resolve()

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
        """One log per rank."""
        return self.path / "logs"

    def rank_log(self, rank: int) -> Path:
        """The log of one rank."""
        return self.logs / f"rank-{rank:05d}.log"

    @property
    def metrics(self) -> Path:
        """One JSON object per line: training progress and evaluations."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """Totals of the run: throughput, bytes per link, time per phase."""
        return self.path / "summary.json"

    @property
    def trace(self) -> Path:
        """Timeline of some batches, in Chrome's trace format."""
        return self.path / "trace.json"

    @property
    def checkpoints(self) -> Path:
        """One directory per checkpoint."""
        return self.path / "checkpoints"

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

    @property
    def _lock(self) -> Path:
        return self.path / ".lock"

    def create(self) -> Self:
        """Make the directory, or say why it cannot be made."""
        try:
            for folder in (self.path, self.logs, self.checkpoints, self.heartbeats):
                folder.mkdir(parents=True, exist_ok=True)
        except (PermissionError, FileExistsError, NotADirectoryError, OSError) as error:
            raise UserError(
                f"{self.path}: cannot be the run directory: {error.strerror}; "
                "choose another with --run-dir"
            ) from None
        if not os.access(self.path, os.W_OK):
            raise UserError(f"{self.path}: no permission to write; choose another with --run-dir")
        return self

    def hold(self) -> RunLock:
        """Keep other runs out of this directory for as long as the lock is held."""
        return RunLock(self._lock)


class RunLock:
    """An advisory lock on a run directory, freed by the kernel even if we are killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        self._file = self._path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise UserError(
                f"{self._path.parent}: another run is using this directory (process {holder}); "
                "wait for it, stop it, or choose another with --run-dir"
            ) from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} on {os.uname().nodename}\n")
        self._file.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._file is not None
        self._file.truncate(0)
        self._file.close()
