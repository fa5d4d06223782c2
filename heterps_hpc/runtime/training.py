"""The training loop: one clock for every role, so that any layout learns the same."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from mpi4py import MPI

from heterps_hpc.dataset import Dataset
from heterps_hpc.phases import Phase
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.batches import Readers, training_steps
from heterps_hpc.runtime.dense import BatchResult
from heterps_hpc.runtime.device import explain_out_of_memory
from heterps_hpc.runtime.evaluate import Evaluator
from heterps_hpc.runtime.exchange.transport import Exchange
from heterps_hpc.runtime.host_reducer import HostReducer
from heterps_hpc.runtime.lr_schedule import factor
from heterps_hpc.runtime.metrics.training_log import TrainingLog
from heterps_hpc.runtime.observer import Observer
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.reducer import Reducer
from heterps_hpc.runtime.reducer_choice import agree_on_reducer, make_reducer
from heterps_hpc.runtime.state.saver import Saver
from heterps_hpc.runtime.tables import Pulled
from heterps_hpc.runtime.votes import CONTINUE, STOP, Votes
from heterps_hpc.runtime.waiting import wait_until

log = logging.getLogger(__name__)


@dataclass
class Result:
    """What a run gave, the same on every rank."""

    steps: int = 0
    samples: int = 0
    losses: list[float] = field(default_factory=list)  # mean loss of each step
    skipped_steps: int = 0
    seconds: float = 0.0  # on the wall from the first batch to the last, with all between them
    training_seconds: float = 0.0  # of them, of this rank: without its evaluations and saves
    samples_per_second: float = 0.0  # while training, as plans predict it
    stopped: bool = False  # by a signal, before the end
    not_saved: str | None = None  # why the last state could not be saved
    evaluation: dict[str, float] = field(default_factory=dict)


class Training:
    """One rank's part in training, from the state that `rank` is in to the end of its job."""

    def __init__(
        self,
        rank: Rank,
        run_dir: RunDir | None = None,
        *,
        saver: Saver | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.rank = rank
        self.job, self.world, self.timer = rank.job, rank.world, rank.timer
        self.steps = training_steps(rank)
        self.exchange = Exchange(
            self.world.exchange,
            on_wait=lambda kind, peer: self.timer.waits_for(peer),
            on_moved=lambda seconds: self.timer.count_as(Phase.TRANSFER, seconds),
        )
        staleness = self.job.train.staleness
        self.sparse = rank.sparse_role(self.exchange, ring=staleness + 2)
        self.dense = rank.dense_role(self.exchange, ring=staleness + 1)
        self.timer.tick()
        self.reducer = self._make_reducer()
        self._overlap_sums()
        self.timer.tick()
        self.votes = Votes(self.world.control, lag=staleness + 1)
        self.progress = TrainingLog(rank, run_dir.metrics if run_dir else None)
        self.result = Result()
        self._saver = saver
        self._saves_at_end = saver is not None and self.job.checkpoint.at_end
        self._observer = observer or Observer()
        if rank.modules is not None:
            rank.modules.observer = self._observer
        if rank.tables is not None:
            rank.tables.observer = self._observer
        self._first = rank.step
        self._readers = Readers(
            rank,
            rank.dataset,
            self.steps,
            self.dense,
            first=rank.step,
            load_ahead=self._observer.loads_ahead,
        )
        self._unreduced: int | None = None  # the step whose dense gradients are being summed
        self._evaluator: Evaluator | None = None
        self._evaluated_at: int | None = None

    def run(self) -> Result:
        """Train to the end (or to a stop that all ranks agreed on)."""
        for early in range(self._first, self._first + self.job.train.staleness):
            self._pull(early)
        self.world.control.Barrier()  # so that the ranks' timelines line up
        self.timer.restart(self._first)
        self.progress.restart_clock()
        started = time.perf_counter()
        while self.rank.step < self.steps.total:
            step = self.rank.step
            decision = self.votes.outcome(step)
            if decision != CONTINUE:
                self._save()
            if decision == STOP:
                self.result.stopped = True
                break
            self.votes.cast(step, self._vote(step + self.votes.lag))
            self._one_step(step)
            self.rank.step += 1
            self._at_boundary()
        self.result.seconds += time.perf_counter() - started
        self.result.training_seconds = self.timer.training_seconds()
        self._finish()
        return self.result

    def _vote(self, step: int) -> int:
        """What this rank wants before that step, which is a few batches from now."""
        if self._observer.wants_stop():
            return STOP
        return CONTINUE if self._saver is None else self._saver.vote(step)

    def evaluate(self) -> dict[str, float]:
        """Quality on the test set as the model is now; all ranks call it at the same step."""
        self._finish_update()
        if self.job.data.test is None:
            return {}
        if self._evaluator is None:
            self._evaluator = Evaluator(self.rank, Dataset.open(self.job.data.test))
        self.progress.pause_clock()
        with self.timer.phase(Phase.EVALUATE):
            found = self._evaluator.evaluate()
        self.progress.restart_clock()
        self._evaluated_at = self.rank.step
        if self.rank.is_reporter:
            self.progress.write({"kind": "evaluation", "step": self.rank.step, **found})
        return found

    def _one_step(self, step: int) -> None:
        """Pull batch t+s, compute batch t, push batch t: the order that staleness defines."""
        self._observer.step_begins(step)
        self.timer.step = step
        train = self.job.train
        self._pull(step + train.staleness)
        if self.sparse is not None:
            self.sparse.expect_gradients(step, self.steps.num_rows(step))
        self._finish_update()
        outcome = BatchResult() if self.dense is None else self._dense_step(step)
        if train.on_nan == "skip":
            self._update_or_skip(step, outcome)
        else:
            self._start_sum(step)
            self._push(step, None if self.sparse is None else self.sparse.receive(step))
        self._observer.step_ends(step)

    def _pull(self, step: int) -> None:
        """Pull a batch in its place in the clock.

        Batches after the end are pulled for the last checkpoint only: a run that is extended later
        has then seen the same rows as one that was longer from the start.
        """
        in_run = step < self.steps.total
        if not in_run and not self._saves_at_end:
            return
        if self.dense is not None and in_run:
            self.dense.expect_rows(step, self.steps.num_rows(step))
        if self.sparse is not None:
            with self.timer.phase(Phase.READ):
                batch = self._readers.keys()
            if step in self.rank.prefetched:  # it was pulled before a checkpoint
                pulled = self.rank.prefetched.pop(step)
                self.sparse.restore_prefetched(step, batch, pulled, send=in_run)
            else:
                self.sparse.pull(step, batch, send=in_run)

    def _dense_step(self, step: int) -> BatchResult:
        """Forward and backward."""
        assert self.dense is not None
        with self.timer.phase(Phase.READ):
            feed = self._readers.feed()
            weight_sum = self._readers.weight_sum(feed.batch.num_rows)
        outcome = self.dense.train(step, feed, weight_sum, keep_scores=self.progress.keeps_scores)
        self.progress.note(outcome, feed, weight_sum)
        return outcome

    def _update_or_skip(self, step: int, outcome: BatchResult) -> None:
        """Update if the loss is a number on all ranks.

        All of them must know before any of them updates: one number goes round. A rank takes in
        the rows' gradients first: they leave a device after its flag, which is then here too.
        """
        pulled = None if self.sparse is None else self.sparse.receive(step)
        good = np.array([outcome.is_good()], dtype=np.int32)
        wait_until(self.world.control.Iallreduce(MPI.IN_PLACE, good, op=MPI.MIN).Test)
        if good[0]:
            self._start_sum(step)
            self._push(step, pulled)
            return
        self.result.skipped_steps += 1
        log.warning("step %d skipped: its loss is not a finite number", step)
        if self.sparse is not None and pulled is not None:
            self.sparse.skip(pulled)

    def _start_sum(self, step: int) -> None:
        """Start to sum the dense gradients.

        `_finish_update` waits for the sum only when the next batch needs the parameters: until then
        the rank pushes this batch and pulls a later one.
        """
        if self.dense is not None:
            with self.timer.phase(Phase.REDUCE):
                self.reducer.start(self.dense.modules.gradients)
            self._unreduced = step

    def _push(self, step: int, pulled: Pulled | None) -> None:
        if self.sparse is not None and pulled is not None:
            sparse = self.job.train.sparse
            lr = sparse.lr * factor(sparse.schedule, step, self.steps.total)
            self.sparse.push(step, pulled, lr)

    def _finish_update(self) -> None:
        """Apply the dense gradients of the last batch, if that has not been done."""
        if self.dense is None or self._unreduced is None:
            return
        step, self._unreduced = self._unreduced, None
        modules, spec = self.dense.modules, self.job.train.dense
        with self.timer.phase(Phase.REDUCE):
            gradients = self.reducer.finish()
        clip = None
        if spec.clip_norm is not None:
            with self.timer.phase(Phase.CLIP):
                clip = self._clip_factor(gradients, spec.clip_norm)
        device = self.rank.device.device
        with self.timer.phase(Phase.UPDATE), explain_out_of_memory(self.world.name(), device):
            modules.apply(spec.lr * factor(spec.schedule, step, self.steps.total), clip)

    def _clip_factor(self, gradients: torch.Tensor, clip_norm: float) -> float:
        """As torch clips, over the dense parameters of all stages."""
        square = np.zeros(1)
        if self.world.entry.replica == 0:  # replicas hold the same sum: count it once
            square[0] = float(gradients.double().square().sum())
        wait_until(self.world.dense.Iallreduce(MPI.IN_PLACE, square).Test)
        return float(clip_norm / (math.sqrt(square[0]) + 1e-6))

    def _save(self) -> None:
        """Bring the rank's state up to date and start to save it; all ranks, at one step."""
        if self._saver is None:
            return
        self._finish_update()
        self.rank.watch.check(wait=True)
        self.progress.pause_clock()
        if self.sparse is not None:
            self.rank.prefetched = self.sparse.prefetched()
        self._saver.save()
        self.progress.restart_clock()
        self.rank.prefetched = {}  # training has them

    def _at_boundary(self) -> None:
        """Between batches: report and evaluate when their step has come."""
        train, step = self.job.train, self.rank.step
        if self.dense is not None and step % train.metrics_every == 0:
            self._report()
        if train.evaluate_every is not None and step % train.evaluate_every == 0:
            self.result.evaluation = self.evaluate()
        if self._saver is not None:
            self._saver.poll()

    def _report(self) -> None:
        step = self.rank.step
        self.rank.watch.check(wait=True)
        self.progress.report(step, self.steps.position(max(step - 1, 0)).epoch)

    def _make_reducer(self) -> Reducer:
        reduces, device = self.world.layout.reduces(self.world.rank), self.rank.device
        agreed = agree_on_reducer(self.world.control, self.job.train.reducer, reduces=reduces)
        stage = self.world.stage if reduces else MPI.COMM_SELF
        return make_reducer(
            stage,
            agreed,
            device,
            may_change=self.job.train.reducer == "auto",
            halves=self.rank.watch if self.job.train.dense.compression == "fp16" else None,
        )

    def _overlap_sums(self) -> None:
        """Let gradients leave a device, and sums begin, before the backward pass is over.

        Not where the loss may still turn out to be one that nobody updates by.
        """
        if not self.rank.device.is_host:
            self.exchange.poll_also(self.reducer.advance)
        if isinstance(self.reducer, HostReducer) and self.job.train.on_nan == "stop":
            assert self.dense is not None
            self.dense.modules.on_complete(self.reducer.add_part)

    def _finish(self) -> None:
        self._finish_update()
        self.rank.watch.check(wait=True)
        self.votes.finish()
        self.exchange.settle_all()
        if self.dense is not None and not self.result.stopped:  # else the resumed run reports
            self._report()
        result, first, last = self.result, self._first, self.rank.step
        result.steps += last - first
        result.samples += sum(self.steps.num_rows(step) for step in range(first, last))
        # the rank that evaluates or saves longest keeps the others waiting, in phases of training
        trained = self.world.control.allreduce(result.training_seconds, MPI.MIN)
        result.samples_per_second = result.samples / max(trained, 1e-9)
        result.losses = self.world.control.bcast(self.rank.losses.reported, self.rank.reporter)
        if self._saves_at_end and not result.stopped:
            self._save()
        self._readers.close()
        at_end = self.job.train.evaluate_at_end and not result.stopped
        if at_end and self._evaluated_at != last:
            result.evaluation = self.evaluate()
        if self._saver is not None:
            failure = self._saver.finish()
            if result.stopped or self._saves_at_end:
                result.not_saved = failure

    def close(self) -> None:
        """End reading, saving and summing; all ranks call it, so none does after an error."""
        self._readers.close()
        if self._saver is not None:
            self._saver.close()
        self.reducer.close()
