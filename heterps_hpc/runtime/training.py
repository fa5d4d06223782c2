"""The training loop: one clock for every role, so that any layout learns the same."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from mpi4py import MPI

from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset, Reader
from heterps_hpc.layout import Layout
from heterps_hpc.models import build_model
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.device import explain_out_of_memory
from heterps_hpc.runtime.evaluate import Evaluator
from heterps_hpc.runtime.exchange.transport import Exchange
from heterps_hpc.runtime.health.phase_timer import Stopwatch
from heterps_hpc.runtime.lookahead import LookAhead
from heterps_hpc.runtime.lr_schedule import factor
from heterps_hpc.runtime.metrics.training_log import Progress
from heterps_hpc.runtime.parts import make_parts
from heterps_hpc.runtime.reducer import make_reducer
from heterps_hpc.runtime.sparse import Prefetched
from heterps_hpc.runtime.steps import Steps
from heterps_hpc.runtime.votes import GO_ON, STOP, Votes
from heterps_hpc.runtime.world import make_world

log = logging.getLogger(__name__)

_TRACED_STEPS = range(10, 30)


class Saves(Protocol):
    """Who saves the world's state; Trainer only says when it is between two batches."""

    def vote(self, step: int) -> int:
        """What this rank wants a few batches later: GO_ON, SAVE or STOP."""

    def save(self) -> None:
        """All ranks agreed to save before this batch."""

    def poll(self) -> None:
        """A batch is done: move on a save under way, without waiting."""

    def finish(self, *, must_succeed: bool) -> None:
        """Wait until the save under way is complete."""

    def close(self) -> None:
        """Give everything back."""


@dataclass
class Result:
    """What a run gave, the same on every rank."""

    steps: int = 0
    samples: int = 0
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
        self.watch = Stopwatch(self.world.rank, _TRACED_STEPS)
        self.dataset = Dataset.open(job.data.train)
        model = build_model(job.model, self.dataset.manifest)
        self.parts = make_parts(self.world, job, model, self.dataset, self.watch)
        self.exchange = Exchange(
            self.world.exchange, on_wait=lambda lane, peer: self.watch.waits_for(peer)
        )
        staleness = job.train.staleness
        self.order = self.parts.order(self.dataset, train=True)
        self.steps = Steps(self.order, job.train)
        self.sparse = self.parts.sparse_role(self.exchange, ring=staleness + 2)
        self.dense = self.parts.dense_role(self.exchange, ring=staleness + 1)
        stage_comm = self.world.stage if self.dense else MPI.COMM_SELF
        self.reducer = make_reducer(stage_comm, job.train.reducer, self.parts.device)
        self.votes = Votes(self.world.control, lag=staleness + 1)
        self.progress = Progress(self.parts, run_dir.metrics if run_dir else None)
        self.step = 0
        self._unfinished: int | None = None  # the step whose dense gradients are being summed
        self.saver: Saves | None = None
        self.prefetched: dict[int, Prefetched] = {}  # batches that were pulled before a checkpoint
        self.result = Result()
        self._readers: list[Reader | LookAhead] = []
        self._evaluator: Evaluator | None = None

    def run(self) -> Result:
        """Train to the end (or to a stop that all ranks agreed on)."""
        self._open_readers()
        staleness = self.job.train.staleness
        for ahead in range(self.step, min(self.step + staleness, self.steps.total)):
            self._pull(ahead)
        first = self.step
        self.world.control.Barrier()  # so that the ranks' timelines line up
        self.watch.restart()
        self.progress.restart_clock()
        started = time.perf_counter()
        while self.step < self.steps.total:
            decision = self.votes.outcome(self.step)
            if decision != GO_ON and self.saver is not None:
                self._finish_update()
                self._check_losses()
                self.saver.save()
            if decision == STOP:
                self.result.stopped = True
                break
            self.votes.cast(self.step, GO_ON if self.saver is None else self.saver.vote(self.step))
            self._one_step(self.step)
            self.step += 1
            self._at_boundary()
        self.result.seconds += time.perf_counter() - started
        self._finish(first)
        return self.result

    def evaluate(self) -> dict[str, float]:
        """Quality on the test set as the model is now; all ranks call it at the same step."""
        self._finish_update()
        if self.job.data.test is None:
            return {}
        if self._evaluator is None:
            dataset = Dataset.open(self.job.data.test)
            self._evaluator = Evaluator(self.parts, dataset, self.progress.reporter)
        with self.watch.phase("evaluate"):
            found = self._evaluator.evaluate()
        if self.progress.is_reporter:
            self.progress.write({"kind": "evaluation", "step": self.step, **found})
        return found

    def _one_step(self, step: int) -> None:
        """Pull batch t+s, compute batch t, push batch t: the order that staleness defines."""
        self.watch.step = step
        train = self.job.train
        if step + train.staleness < self.steps.total:
            self._pull(step + train.staleness)
        if self.sparse is not None:
            self.sparse.expect_gradients(step, self.steps.num_rows(step))
        good = True
        self._finish_update()
        if self.dense is not None:
            good = self._dense_step(step)
        if train.on_nan == "skip":
            good = self.world.control.allreduce(good, op=MPI.LAND)
        if good:
            self._update(step)
        else:
            self._skip(step)

    def _pull(self, step: int) -> None:
        if self.dense is not None:
            self.dense.expect_rows(step, self.steps.num_rows(step))
        if self.sparse is not None:
            with self.watch.phase("read"):
                batch = next(self._sparse_reader)
            if step in self.prefetched:
                self.sparse.restore_prefetched(step, batch, self.prefetched.pop(step))
            else:
                self.sparse.pull(step, batch)

    def _dense_step(self, step: int) -> bool:
        """Forward and backward; false if the loss is not a number and the job says skip."""
        assert self.dense is not None
        with self.watch.phase("read"):
            batch = next(self._dense_reader)
            weight_sum = self._weight_sum(batch.num_rows)
            feed = self.dense.feed(batch, self._feed_reads)
        outcome = self.dense.train(step, feed, weight_sum, keep_scores=self.progress.keeps_scores)
        self.progress.note(outcome, feed, weight_sum)
        # where a bad loss stops the run, nobody need wait for it here: `check_losses` finds it
        return self.job.train.on_nan == "stop" or math.isfinite(outcome)

    def _update(self, step: int) -> None:
        """Start to sum the dense gradients, and push rows meanwhile.

        The sum is taken up by `_finish_update` only when the next batch needs the parameters:
        until then the rank pushes this batch and pulls a later one.
        """
        if self.dense is not None:
            self._start_reduce()
            self._unfinished = step
        if self.sparse is not None:
            sparse = self.job.train.sparse
            self.sparse.push(step, sparse.lr * factor(sparse.schedule, step, self.steps.total))

    def _start_reduce(self) -> None:
        assert self.dense is not None
        with self.watch.phase("reduce"):
            self.reducer.start(self.dense.modules.gradients)

    def _finish_update(self) -> None:
        """Apply the dense gradients of the last batch, if that has not been done."""
        if self.dense is None or self._unfinished is None:
            return
        step, self._unfinished = self._unfinished, None
        modules, spec = self.dense.modules, self.job.train.dense
        with self.watch.phase("reduce"):
            self.reducer.finish()
        clip = None
        if spec.clip_norm is not None:
            with self.watch.phase("clip"):
                clip = self._clip_factor(modules.gradients, spec.clip_norm)
        device = self.parts.device.device
        with self.watch.phase("update"), explain_out_of_memory(self.world.name(), device):
            modules.apply(spec.lr * factor(spec.schedule, step, self.steps.total), clip)

    def _clip_factor(self, gradients: torch.Tensor, clip_norm: float) -> float:
        """As torch clips, over the dense parameters of all stages."""
        square = np.zeros(1)
        if self.world.entry.replica == 0:  # replicas hold the same sum: count it once
            square[0] = float(gradients.double().square().sum())
        self.world.dense.Allreduce(MPI.IN_PLACE, square)
        return float(clip_norm / (math.sqrt(square[0]) + 1e-6))

    def _skip(self, step: int) -> None:
        self.result.skipped_steps += 1
        log.warning("step %d skipped: its loss is not a finite number", step)
        if self.sparse is not None:
            self.sparse.skip(step)

    def _weight_sum(self, num_rows: int) -> float:
        if self._weight_reader is None:
            return float(num_rows)
        weight = next(self._weight_reader).weight
        assert weight is not None
        return float(weight.sum(dtype=np.float64))

    def _at_boundary(self) -> None:
        """Between batches: report and evaluate when their step has come."""
        train = self.job.train
        if self.dense is not None and self.step % train.metrics_every == 0:
            self._report()
        if train.evaluate_every is not None and self.step % train.evaluate_every == 0:
            self.result.evaluation = self.evaluate()
            self.progress.restart_clock()
        if self.saver is not None:
            self.saver.poll()

    def _report(self) -> None:
        self.progress.report(self.step, self.steps.position(max(self.step - 1, 0)).epoch)

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

    def _check_losses(self) -> None:
        if self.dense is not None:
            self.dense.check_losses(wait=True)

    def _finish(self, first: int) -> None:
        self._finish_update()
        self._check_losses()
        self.votes.finish()
        self.exchange.settle_all()
        self._close_readers()
        if self.dense is not None:
            self._report()
        result = self.result
        result.steps += self.step - first
        result.samples += sum(self.steps.num_rows(step) for step in range(first, self.step))
        result.samples_per_second = result.samples / max(result.seconds, 1e-9)
        result.losses = self.world.control.bcast(self.progress.losses, self.progress.reporter)
        if self.saver is not None and self.job.checkpoint.at_end and not result.stopped:
            self.saver.save()
        train = self.job.train
        just_done = train.evaluate_every is not None and self.step % train.evaluate_every == 0
        if train.evaluate_at_end and not result.stopped and not just_done:
            result.evaluation = self.evaluate()
        if self.saver is not None:
            self.saver.finish(must_succeed=result.stopped)

    def _close_readers(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def dense_tensors(self) -> dict[str, np.ndarray]:
        """Parameters of this rank's stage, by LAYER.PARAMETER."""
        if self.dense is None:
            return {}
        named = self.dense.modules.named_parameters()
        return {name: value.detach().cpu().numpy().copy() for name, value in named}

    def table_rows(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Keys and vectors of this rank's shards."""
        return {} if self.sparse is None else self.sparse.shards.all_rows()

    def close(self) -> None:
        """Give everything back."""
        self._close_readers()
        if self.saver is not None:
            self.saver.close()
        self.reducer.close()
        self.world.free()
