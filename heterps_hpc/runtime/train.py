"""The training loop: one clock for every role, so that any layout learns the same."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset, Reader
from heterps_hpc.layout import Layout
from heterps_hpc.model import LOSS
from heterps_hpc.models import build_model
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.dense import Outcome
from heterps_hpc.runtime.exchange import Exchange
from heterps_hpc.runtime.feed import Feed
from heterps_hpc.runtime.lr import factor
from heterps_hpc.runtime.parts import make_parts
from heterps_hpc.runtime.reducer import make_reducer
from heterps_hpc.runtime.steps import Steps
from heterps_hpc.runtime.stopwatch import Stopwatch
from heterps_hpc.runtime.votes import Votes
from heterps_hpc.runtime.world import make_world

log = logging.getLogger(__name__)


class TrainingFailed(RuntimeError):
    """Training cannot go on; the message says step, rank and stage."""


@dataclass
class Result:
    """What a run gave, the same on every rank."""

    steps: int = 0
    losses: list[float] = field(default_factory=list)  # mean loss of each step
    skipped_steps: int = 0
    seconds: float = 0.0
    samples_per_second: float = 0.0
    stopped: bool = False  # by a signal, before the end
    evaluation: dict[str, float] = field(default_factory=dict)


class Trainer:
    """One rank's part in training a layout."""

    def __init__(
        self, comm: MPI.Intracomm, job: Job, layout: Layout, run_dir: RunDir | None = None
    ) -> None:
        self.job = job
        self.run_dir = run_dir
        self.world = make_world(comm, layout)
        self.watch = Stopwatch(self.world.rank)
        self.dataset = Dataset.open(job.data.train)
        model = build_model(job.model, self.dataset.manifest)
        self.parts = make_parts(self.world, job, model, self.dataset, self.watch)
        self.exchange = Exchange(self.world.exchange)
        staleness = job.train.staleness
        self.order = self.parts.order(self.dataset, train=True)
        self.steps = Steps(self.order, job.train)
        self.sparse = self.parts.sparse_role(self.exchange, ring=staleness + 2)
        self.dense = self.parts.dense_role(self.exchange, ring=staleness + 1)
        self.reducer = make_reducer(self.world.stage if self.dense else MPI.COMM_SELF, "auto")
        self.votes = Votes(self.world.control, lag=staleness + 1)
        self.step = 0
        self._readers: list[Reader] = []
        self._local_losses: list[tuple[float, float]] = []  # (sum, weight) per step
        self.result = Result()

    def run(self) -> Result:
        """Train to the end (or to a stop that all ranks agreed on)."""
        self._open_readers()
        staleness = self.job.train.staleness
        for ahead in range(self.step, min(self.step + staleness, self.steps.total)):
            self._pull(ahead)
        started = time.perf_counter()
        first = self.step
        while self.step < self.steps.total:
            if self.votes.outcome(self.step):
                self.result.stopped = True
                break
            self.votes.cast(self.step, 0)
            self._one_step(self.step)
            self.step += 1
        self.result.seconds = time.perf_counter() - started
        self._finish(first)
        return self.result

    def _one_step(self, step: int) -> None:
        """Pull batch t+s, compute batch t, push batch t: the order that staleness defines."""
        self.watch.step = step
        train = self.job.train
        if step + train.staleness < self.steps.total:
            self._pull(step + train.staleness)
        if self.sparse is not None:
            self.sparse.expect_gradients(step, self.steps.num_rows(step))
        if self.dense is not None:
            self._dense_step(step)
        if self.sparse is not None:
            lr = train.sparse.lr * factor(train.sparse.schedule, step, self.steps.total)
            self.sparse.push(step, lr)

    def _pull(self, step: int) -> None:
        if self.dense is not None:
            self.dense.expect_rows(step, self.steps.num_rows(step))
        if self.sparse is not None:
            with self.watch.phase("read"):
                batch = next(self._sparse_reader)
            self.sparse.pull(step, batch)

    def _dense_step(self, step: int) -> None:
        assert self.dense is not None
        with self.watch.phase("read"):
            batch = next(self._dense_reader)
            weight_sum = self._weight_sum(batch.num_rows)
            feed = Feed(
                batch,
                self.dense.replica_ranges(batch.num_rows),
                self._feed_reads,
                self.dense.modules.dtype,
                str(self.dense.modules.device),
            )
        outcome = self.dense.train(step, feed, weight_sum, keep_scores=False)
        self._note_loss(step, outcome, weight_sum)
        self._update(step)

    def _update(self, step: int) -> None:
        assert self.dense is not None
        modules, spec = self.dense.modules, self.job.train.dense
        with self.watch.phase("reduce"):
            self.reducer.start(modules.gradients)
            self.reducer.finish()
        clip = None
        if spec.clip_norm is not None:
            with self.watch.phase("clip"):
                clip = self._clip_factor(modules.gradients, spec.clip_norm)
        with self.watch.phase("update"):
            modules.apply(spec.lr * factor(spec.schedule, step, self.steps.total), clip)

    def _clip_factor(self, gradients: torch.Tensor, clip_norm: float) -> float:
        """As torch clips, over the dense parameters of all stages."""
        square = np.zeros(1)
        if self.world.entry.replica == 0:  # replicas hold the same sum: count it once
            square[0] = float(gradients.double().square().sum())
        self.world.dense.Allreduce(MPI.IN_PLACE, square)
        return float(clip_norm / (math.sqrt(square[0]) + 1e-6))

    def _note_loss(self, step: int, outcome: Outcome, weight_sum: float) -> None:
        if not self.parts.writes(LOSS):
            return
        if not math.isfinite(outcome.loss_sum):
            raise TrainingFailed(
                f"the loss of step {step} is {outcome.loss_sum} on {self.world.name()}; lower the "
                "learning rate, clip gradients (train.dense.clip_norm), or set train.on_nan: skip"
            )
        self._local_losses.append((outcome.loss_sum, weight_sum))

    def _weight_sum(self, num_rows: int) -> float:
        if self._weight_reader is None:
            return float(num_rows)
        weight = next(self._weight_reader).weight
        assert weight is not None
        return float(weight.sum(dtype=np.float64))

    def _open_readers(self) -> None:
        self._weight_reader: Reader | None = None
        if self.sparse is not None:
            self._sparse_reader = self.parts.sparse_reader(
                self.dataset, self.order, self.steps, self.step
            )
            self._readers.append(self._sparse_reader)
        if self.dense is not None:
            self._dense_reader = self.parts.dense_reader(
                self.dataset, self.order, self.dense, self.steps, self.step
            )
            self._readers.append(self._dense_reader)
            self._feed_reads = set(self.dense.data_reads)
            self._weight_reader = self.parts.weight_reader(
                self.dataset, self.order, self.steps, self.step
            )
            if self._weight_reader is not None:
                self._readers.append(self._weight_reader)
                self._feed_reads.add("weight")

    def _finish(self, first: int) -> None:
        self.votes.finish()
        self.exchange.settle_all()
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        gathered = self.world.control.allgather(self._local_losses)
        totals = [losses for losses in gathered if losses]
        self.result.steps = self.step - first
        if totals:
            sums = np.array([[loss for loss, _ in losses] for losses in totals]).sum(axis=0)
            weights = np.array([weight for _, weight in totals[0]])
            self.result.losses = [float(x) for x in sums / weights]
        num_samples = sum(self.steps.num_rows(step) for step in range(first, self.step))
        self.result.samples_per_second = num_samples / max(self.result.seconds, 1e-9)

    def dense_tensors(self) -> dict[str, np.ndarray]:
        """Parameters of this rank's stage, by LAYER.PARAMETER."""
        if self.dense is None:
            return {}
        named = self.dense.modules.named_parameters()
        return {name: value.detach().cpu().numpy().copy() for name, value in named}

    def table_rows(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Keys and vectors of this rank's shards."""
        found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if self.sparse is None:
            return found
        for name, table in self.sparse.shards.tables.items():
            snapshot = table.snapshot()
            blocks: list[Any] = [
                rows for part in snapshot.partitions() for rows in snapshot.read(part)
            ]
            snapshot.close()
            if blocks:
                keys = np.concatenate([block.keys for block in blocks])
                vectors = np.concatenate([block.vectors for block in blocks])
                found[name] = (keys, vectors)
        return found

    def close(self) -> None:
        """Give everything back."""
        for reader in self._readers:
            reader.close()
        self.reducer.close()
        self.world.free()
