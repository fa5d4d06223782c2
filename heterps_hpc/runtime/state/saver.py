"""Saves the world's state while training continues: shards in the background, the manifest last.

    all ranks    at an agreed batch: capture (snapshots and small copies), start a writing thread
    each rank    shard on disk → its description goes to rank 0, in the background of training
    rank 0       has all descriptions → manifest → older checkpoints are removed

A save that fails on one rank (a full disk) fails for all: it is reported and removed, the
earlier checkpoints stay as they are, and training continues.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from heterps_hpc import events
from heterps_hpc.checkpoint import Manifest, ShardSpec
from heterps_hpc.checkpoint.compatibility import must_match
from heterps_hpc.checkpoint.store import directory_of, discard, keep_last, publish, shard_name
from heterps_hpc.errors import UserError
from heterps_hpc.phases import Phase
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.state.capture import Captured, write_shard
from heterps_hpc.runtime.votes import CONTINUE, SAVE, STOP, StopFlag

log = logging.getLogger(__name__)

_NAP_SECONDS = 0.002
_REPORT = 7  # tag of a shard's description on its way to rank 0


class SaveFailed(RuntimeError):
    """A checkpoint that had to be written could not be."""


Report = dict[str, Any]  # what a rank reports of its shard


@dataclass
class _Save:
    """One save in progress, as rank 0 sees it."""

    step: int
    began: float
    pause_seconds: float
    publishing: Future[None] | None = None


class Saver:
    """One rank's part in saving. All calls come from the training thread."""

    def __init__(self, state: Rank, run_dir: RunDir, stop: StopFlag) -> None:
        self._state = state
        self._run_dir = run_dir
        self._stop = stop
        self._spec = state.job.checkpoint
        self._comm = state.world.control.Dup()
        self._rank = self._comm.rank
        self._token = self._comm.bcast(secrets.token_hex(4))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="heterps-save")
        self._writing: Future[Report] | None = None
        self._sending: list[tuple[MPI.Request, bytes]] = []
        self._save: _Save | None = None  # rank 0: until the manifest is written
        self._reports: dict[int, dict[int, Report]] = {}  # rank 0: by step and rank
        self._asked = False  # rank 0: a vote for a save is on its way
        self._failure: str | None = None
        self.last_step = state.step  # of the last save, or of the checkpoint we came from
        self._last_time = time.monotonic()

    def vote(self, step: int) -> int:
        """What this rank wants before that step, which is a few batches from now."""
        if self._stop.requested is not None:
            return STOP
        if self._rank == 0 and not self._asked and self._save is None:
            self._asked = self._is_due(step)
            return SAVE if self._asked else CONTINUE
        return CONTINUE

    def _is_due(self, step: int) -> bool:
        every, minutes = self._spec.every_steps, self._spec.every_minutes
        if every is not None and step // every > self.last_step // every:
            return True
        return minutes is not None and time.monotonic() - self._last_time > minutes * 60

    def save(self) -> None:
        """Capture the state between two batches and start to write; all ranks, at one step."""
        step = self._state.step
        self._asked = False
        if step == self.last_step and step > 0:
            return
        self._settle()  # one at a time; rank 0 asks for the next when the last one is done
        began = time.perf_counter()
        with self._state.timer.phase(Phase.SAVE):
            captured = self._state.capture()
        self.last_step, self._last_time = step, time.monotonic()
        path = directory_of(self._run_dir.checkpoints, step) / shard_name(self._rank, self._token)
        self._writing = self._pool.submit(self._write, captured, path)
        if self._rank == 0:
            self._save = _Save(step, time.monotonic(), time.perf_counter() - began)

    def _write(self, captured: Captured, path: Path) -> Report:
        """In the background: write the shard, or report why it cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            spec = write_shard(captured, path, self._rank, self._state.timer.tick)
        except OSError as error:
            why = f"{error.strerror or error} ({error.filename or path})"
            what = f"{self._state.world.name()}: {why}"
            return {"step": captured.step, "error": what, "file": path.name}
        finally:
            captured.close()
        return {
            "step": captured.step,
            "shard": spec.model_dump(mode="json"),
            "tables": {name: found.model_dump() for name, found in captured.formats.items()},
            "file": path.name,
        }

    def poll(self) -> None:
        """Move a save on without waiting; called between batches."""
        if self._writing is not None and self._writing.done():
            self._report(self._writing.result())
            self._writing = None
        self._sending = [(request, data) for request, data in self._sending if not request.Test()]
        if self._rank == 0 and self._save is not None:
            status = MPI.Status()
            while (message := self._comm.Improbe(tag=_REPORT, status=status)) is not None:
                data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                message.Recv([data, MPI.BYTE])
                self._note(status.Get_source(), json.loads(data.tobytes()))
            self._advance(self._save)

    def _note(self, rank: int, report: Report) -> None:
        # by step: a quick rank may be at its next save while others still write this one
        self._reports.setdefault(report["step"], {})[rank] = report

    def _report(self, report: Report) -> None:
        if self._rank == 0:
            self._note(0, report)
            return
        data = json.dumps(report).encode()
        self._sending.append((self._comm.Isend([data, MPI.BYTE], 0, _REPORT), data))

    def _advance(self, save: _Save) -> None:
        """Rank 0: publish once all shards are there; note the end of publishing."""
        if save.publishing is None and len(self._reports.get(save.step, ())) == self._comm.size:
            by_rank = self._reports.pop(save.step)
            reports = [by_rank[rank] for rank in range(self._comm.size)]
            save.publishing = self._pool.submit(self._publish, save, reports)
        if save.publishing is not None and save.publishing.done():
            self._save = None
            try:
                save.publishing.result()
                self._failure = None
            except (OSError, UserError, SaveFailed) as error:
                self._failure = f"checkpoint of step {save.step} not written: {error}"
                log.error("%s; earlier checkpoints stay as they are", self._failure)
                failure = events.SaveFailure(step=save.step, why=str(error))
                events.record_if_possible(self._run_dir, failure)

    def _publish(self, save: _Save, reports: list[Report]) -> None:
        directory = directory_of(self._run_dir.checkpoints, save.step)
        problems = [report["error"] for report in reports if "error" in report]
        try:
            if problems:
                raise SaveFailed("; ".join(problems))
            manifest = self._manifest(save.step, reports)
            publish(directory, manifest)
        except BaseException:
            discard(directory, [report["file"] for report in reports])
            raise
        keep_last(self._run_dir.checkpoints, self._spec.keep)
        seconds = round(time.monotonic() - save.began, 3)
        size = manifest.num_bytes
        log.info("checkpoint of step %d: %.1f MB in %.1f s", save.step, size / 1e6, seconds)
        saved = events.CheckpointSaved(
            step=save.step,
            num_bytes=size,
            seconds=seconds,
            pause_seconds=round(save.pause_seconds, 6),
        )
        events.record_if_possible(self._run_dir, saved)

    def _manifest(self, step: int, reports: list[Report]) -> Manifest:
        state = self._state
        tables: dict[str, Any] = {}
        for report in reports:
            tables.update(report["tables"])
        return Manifest.model_validate(
            {
                "job": state.job.name,
                "step": step,
                "saved_at": time.time(),
                "model": state.model.name,
                "model_fingerprint": state.model.fingerprint(),
                "data_fingerprint": state.dataset.manifest.fingerprint(),
                "data_schema": state.dataset.manifest.schema_only().model_dump(mode="json"),
                "num_partitions": state.world.layout.num_partitions,
                "must_match": must_match(state.job),
                "tables": tables,
                "key_recipe": state.dataset.manifest.key_recipe(),
                "shards": [ShardSpec.model_validate(report["shard"]) for report in reports],
            }
        )

    def finish(self) -> str | None:
        """Wait for the save in progress; why the last one failed, if it did. All ranks call it."""
        self._settle()
        with self._state.timer.phase(Phase.WAIT_FOR_SAVE):
            self._failure = self._comm.bcast(self._failure)
        return self._failure

    def _settle(self) -> None:
        """Wait until this rank's shard is written and, on rank 0, the manifest."""
        with self._state.timer.phase(Phase.WAIT_FOR_SAVE):
            while self._writing is not None or self._sending or self._save is not None:
                self.poll()
                time.sleep(_NAP_SECONDS)

    def close(self) -> None:
        """Stop the thread and free the communicator."""
        self._pool.shutdown()
        self._comm.Free()
