"""A rank's dense role: micro-batches forward and backward through the modules of its stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from heterps_hpc.dataset import Batch
from heterps_hpc.model import LOSS, SCORE
from heterps_hpc.models.dropout import samples
from heterps_hpc.phases import Phase
from heterps_hpc.row_ranges import Range
from heterps_hpc.runtime.batches import Feed
from heterps_hpc.runtime.clock import one_forward_one_backward
from heterps_hpc.runtime.device import HostCopy, explain_out_of_memory
from heterps_hpc.runtime.exchange.channel import Channels, Message, Receiver, Sender, join
from heterps_hpc.runtime.exchange.routes import RankRoutes, Shapes, stage_inputs
from heterps_hpc.runtime.exchange.transport import MessageKind
from heterps_hpc.runtime.finite import FiniteWatch
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.stage import StageModules

_RING = 2  # batches of activations and gradients whose buffers may be in use at once


@dataclass
class InFlight:
    """A micro-batch between its forward and its backward."""

    leaves: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]
    loss: torch.Tensor | None


@dataclass
class BatchResult:
    """What one batch gave on this rank."""

    # on a device's rank all of it may still be on its way
    losses: HostCopy | None = None  # of each micro-batch: weighted sum over this rank's samples
    is_finite: HostCopy | None = None  # whether all of these are, if somebody asks for it
    scores: list[HostCopy] = field(default_factory=list)  # of each micro-batch

    def __float__(self) -> float:
        """The loss, summed over this rank's samples; waits for it."""
        total = 0.0
        for loss in [] if self.losses is None else self.losses.tensor().tolist():
            total += loss  # not `sum`, which rounds otherwise in newer Pythons
        return total

    def is_good(self) -> bool:
        """Whether the loss is a number; waits for the flag."""
        return self.is_finite is None or bool(self.is_finite.tensor())


class DenseRole:
    """Runs batches; the rows of `ring` batches may wait in buffers."""

    def __init__(
        self,
        modules: StageModules,
        routes: RankRoutes,
        shapes: Shapes,
        channels: Channels,
        *,
        ring: int,
        seed: int,
        timer: PhaseTimer,
        watch: FiniteWatch,
        on_bad_loss: Callable[[int, float], None] | None,
        who: str,
    ) -> None:
        self.modules = modules
        self._device = channels.device
        self._who = who  # in errors
        self._watch = watch
        self._on_bad_loss = on_bad_loss  # may raise
        self._exchange = channels.exchange
        self._num_micro_batches = channels.num_micro_batches
        self._num_later_stages = routes.num_later_stages
        self._replica = routes.replica
        self._shapes = shapes
        self._seed = seed
        self._timer = timer
        self._external, self._data_reads = stage_inputs(modules.layers)
        kinds, check = MessageKind, self._check_flags
        self._rows = [channels.receiver(kinds.ROWS, route, ring) for route in routes.rows_in]
        self._row_gradients = [
            channels.sender(kinds.ROW_GRADIENTS, route, _RING, check) for route in routes.rows_in
        ]
        self._inputs = [
            channels.receiver(kinds.ACTIVATIONS, route, _RING) for route in routes.activations_in
        ]
        self._input_gradients = [
            channels.sender(kinds.ACTIVATION_GRADIENTS, route, _RING, check)
            for route in routes.activations_in
        ]
        self._outputs = [
            channels.sender(kinds.ACTIVATIONS, route, _RING) for route in routes.activations_out
        ]
        self._output_gradients = [
            channels.receiver(kinds.ACTIVATION_GRADIENTS, route, _RING)
            for route in routes.activations_out
        ]
        self._output_names = list(
            dict.fromkeys(each.tensor for route in routes.activations_out for each in route.slices)
        )

    @property
    def data_reads(self) -> set[str]:
        """Tensors that this stage takes from the data set."""
        return self._data_reads

    def replica_ranges(self, num_rows: int) -> list[Range]:
        """This replica's rows of every micro-batch, within the batch."""
        return self._ranges(num_rows)

    def feed(self, batch: Batch, reads: set[str]) -> Feed:
        """This replica's own data of a batch."""
        ranges = self._ranges(batch.num_rows)
        return Feed(batch, ranges, reads, self.modules.dtype, self._device)

    def expect_rows(self, step: int, num_rows: int) -> None:
        """Post the receives of a batch's pooled rows."""
        for receiver in self._rows:
            receiver.post(step, num_rows)

    def train(self, step: int, feed: Feed, weight_sum: float, *, keep_scores: bool) -> BatchResult:
        """Forward and backward of all micro-batches; gradients end in the flat buffer."""
        self._check_flags()
        with explain_out_of_memory(self._who, self._device.device):
            return self._train(step, feed, weight_sum, keep_scores)

    def _train(self, step: int, feed: Feed, weight_sum: float, keep_scores: bool) -> BatchResult:
        num_rows, num_micro_batches = feed.batch.num_rows, self._num_micro_batches
        self.modules.clear_gradients()
        self._begin(step, num_rows, gradients=True)
        result = BatchResult()
        in_flight: dict[int, InFlight] = {}
        losses: list[torch.Tensor] = []
        mine = [number for number, (low, high) in enumerate(self._ranges(num_rows)) if low < high]
        for tick, micro_batch in one_forward_one_backward(
            num_micro_batches, self._num_later_stages
        ):
            if micro_batch not in mine:
                continue
            is_last = micro_batch == mine[-1]
            if tick == "forward":
                found = self._forward(step, micro_batch, feed, result, keep_scores)
                in_flight[micro_batch] = found
                if found.loss is not None:
                    losses.append(found.loss.detach())
                    self._note_losses(step, losses, result, is_last)
            else:
                found = in_flight.pop(micro_batch)
                self._backward(step, micro_batch, num_rows, found, weight_sum, is_last)
        self._exchange.flush()
        return result

    def _note_losses(
        self, step: int, losses: list[torch.Tensor], result: BatchResult, is_last: bool
    ) -> None:
        """Look on the device whether losses are numbers; a batch's go to the host together.

        Where a bad loss stops the run, the flag of each comes to the host before the gradients that
        it leads to, which are not sent until the host has looked at it.
        """
        newest, on_bad = losses[-1], self._on_bad_loss
        if on_bad is not None:
            self._watch.expect(self._watch.flag(newest), lambda: on_bad(step, float(newest)))
        if is_last:
            stacked = torch.stack(losses)
            if on_bad is None:
                result.is_finite = self._watch.flag(stacked)
            result.losses = self._device.to_host(stacked)

    def _check_flags(self) -> None:
        self._watch.check(wait=False)

    def evaluate(self, step: int, feed: Feed) -> BatchResult:
        """Forward only."""
        self._begin(step, feed.batch.num_rows, gradients=False)
        result = BatchResult()
        with torch.no_grad(), explain_out_of_memory(self._who, self._device.device):
            for micro_batch, (low, high) in enumerate(self._ranges(feed.batch.num_rows)):
                if low < high:
                    self._forward(step, micro_batch, feed, result, keep_scores=True)
        return result

    def _begin(self, step: int, num_rows: int, *, gradients: bool) -> None:
        kinds = MessageKind
        for kind in (kinds.ACTIVATIONS, kinds.ACTIVATION_GRADIENTS, kinds.ROW_GRADIENTS):
            self._exchange.settle(kind, step - _RING)
        for receiver in self._inputs + (self._output_gradients if gradients else []):
            receiver.post(step, num_rows)

    def _forward(
        self, step: int, micro_batch: int, feed: Feed, result: BatchResult, keep_scores: bool
    ) -> InFlight:
        rows = feed.rows(micro_batch)
        count = rows.stop - rows.start
        leaves = self._assemble(step, micro_batch, count, feed.batch.num_rows)
        tensors = feed.tensors(micro_batch) | leaves
        with (
            self._timer.phase(Phase.FORWARD),
            samples(self._seed, feed.batch.epoch, feed.sample_ids(micro_batch)),
        ):
            for _ in self.modules.run(tensors):
                self._exchange.poke()
        outputs = {name: tensors[name] for name in self._output_names}
        flat = {name: value.detach().reshape(len(value), -1) for name, value in outputs.items()}
        self._send(self._outputs, step, micro_batch, feed.batch.num_rows, flat)
        loss = None
        if LOSS in tensors:
            loss = tensors[LOSS].to(self.modules.dtype)
            if "weight" in tensors:
                loss = loss * tensors["weight"]
            loss = loss.sum()
        if keep_scores and SCORE in tensors and SCORE not in leaves:
            result.scores.append(self._device.to_host(tensors[SCORE].detach().float()))
        return InFlight(leaves, outputs, loss)

    def _backward(
        self,
        step: int,
        micro_batch: int,
        num_rows: int,
        batch: InFlight,
        weight_sum: float,
        is_last: bool,
    ) -> None:
        gradients = self._gather_gradients(step, micro_batch, num_rows, batch.outputs)
        roots: list[torch.Tensor] = []
        seeds: list[torch.Tensor | None] = []
        if batch.loss is not None:
            roots.append(batch.loss / weight_sum)
            seeds.append(None)
        for name, gradient in gradients.items():
            if batch.outputs[name].requires_grad:
                roots.append(batch.outputs[name])
                seeds.append(gradient)
        with self._timer.phase(Phase.BACKWARD):
            self.modules.backward(roots, seeds, is_last=is_last)
        self._exchange.poke()
        flat = {}
        for name, leaf in batch.leaves.items():
            gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
            flat[name] = gradient.reshape(len(leaf), -1)
        senders = self._row_gradients + self._input_gradients
        self._send(senders, step, micro_batch, num_rows, flat)

    def _assemble(
        self, step: int, micro_batch: int, count: int, num_rows: int
    ) -> dict[str, torch.Tensor]:
        """The stage's inputs from other ranks, as leaves of the graph."""
        with self._timer.phase(Phase.WAIT_INPUTS):
            messages = self._take(self._rows + self._inputs, step, micro_batch, num_rows)
        leaves = {}
        with self._timer.phase(Phase.ASSEMBLE):
            for name in self._external:
                shape = self._shapes[name]
                value = join(name, count, prod(shape), messages, self.modules.gradients)
                leaf = value.view(count, *shape)
                leaves[name] = leaf.requires_grad_(torch.is_grad_enabled())
        return leaves

    def _gather_gradients(
        self, step: int, micro_batch: int, num_rows: int, outputs: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Gradients of what this stage sent, summed over all the stages that read it."""
        if not outputs:
            return {}
        with self._timer.phase(Phase.WAIT_GRADIENTS):
            messages = self._take(self._output_gradients, step, micro_batch, num_rows)
        gradients = {}
        with self._timer.phase(Phase.ASSEMBLE):
            for name, output in outputs.items():
                width, like = prod(self._shapes[name]), self.modules.gradients
                total = _sum(name, len(output), width, messages, like)
                gradients[name] = total.view(output.shape).to(output.dtype)
        return gradients

    def _take(
        self, receivers: Sequence[Receiver], step: int, micro_batch: int, num_rows: int
    ) -> list[Message]:
        taken = (receiver.take(step, num_rows, micro_batch) for receiver in receivers)
        return [message for message in taken if message is not None]

    def _send(
        self,
        senders: Sequence[Sender],
        step: int,
        micro_batch: int,
        num_rows: int,
        tensors: dict[str, torch.Tensor],
    ) -> None:
        with self._timer.phase(Phase.SEND):
            for sender in senders:
                sender.send(step, num_rows, micro_batch, tensors)

    def _ranges(self, num_rows: int) -> list[Range]:
        return self._replica.rows(num_rows, self._num_micro_batches)


def _sum(
    tensor: str, num_rows: int, width: int, messages: Sequence[Message], like: torch.Tensor
) -> torch.Tensor:
    """The sum of the messages that have parts of a tensor; a message that is all of it, itself."""
    parts = [message for message in messages if message.has(tensor)]
    if len(parts) == 1 and parts[0].is_all_of(tensor, num_rows, width):
        return parts[0].data
    total = like.new_zeros((num_rows, width))
    for message in parts:
        message.add_to(tensor, total)
    return total
