"""A rank's dense role: micro-batches forward and backward through the modules of its stage."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import torch

from heterps_hpc.dataset import Batch
from heterps_hpc.layout import Layout, RankLayout
from heterps_hpc.model import LOSS, SCORE, Model
from heterps_hpc.models.layers import samples
from heterps_hpc.phases import Phase
from heterps_hpc.row_ranges import Range, overlap, replica_ranges
from heterps_hpc.runtime.batches import Feed
from heterps_hpc.runtime.clock import one_forward_one_backward
from heterps_hpc.runtime.exchange.assembly import external_tensors, join_messages
from heterps_hpc.runtime.exchange.channel import Inlet, Ring, Share, is_whole, pack
from heterps_hpc.runtime.exchange.routes import (
    Route,
    Shapes,
    dense_routes,
    dense_stages,
    sparse_routes,
)
from heterps_hpc.runtime.exchange.transport import Exchange, Lane
from heterps_hpc.runtime.exchange.wire import Wire
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.stage import StageModules


@dataclass
class Alive:
    """A micro-batch between its forward and its backward."""

    leaves: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]
    loss: torch.Tensor | None


@dataclass
class Outcome:
    """What one batch gave on this rank."""

    loss_sum: float = 0.0  # weighted, over this rank's samples
    scores: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Port:
    """One route of this rank with its two directions."""

    route: Route
    inlet: Inlet
    ring: Ring  # for what this rank sends on the route
    peer_stage: int
    peer_replica: int


class DenseRole:
    """Runs batches; `ring` batches of rows may wait in buffers."""

    def __init__(
        self,
        entry: RankLayout,
        model: Model,
        layout: Layout,
        shapes: Shapes,
        modules: StageModules,
        exchange: Exchange,
        *,
        batch_size: int,
        num_micro_batches: int,
        ring: int,
        wire: Wire,
        seed: int,
        watch: PhaseTimer,
        on_bad_loss: Callable[[int, float], None],
    ) -> None:
        self.modules = modules
        self._on_bad_loss = on_bad_loss  # may raise
        self._entry = entry
        self._layout = layout
        self._exchange = exchange
        self._num_micro_batches = num_micro_batches
        self._shapes = shapes
        self._wire = wire
        self._seed = seed
        self._watch = watch
        self._known_shares: dict[tuple[int, int, Lane, int], list[Share]] = {}
        stages = dense_stages(model, layout)
        self._num_later = len([stage for stage in stages if stage > entry.stage])
        self._external, self._data_reads = external_tensors(modules)
        self._num_replicas = layout.stages[entry.stage].num_ranks
        max_rows = sum(b - a for a, b in self._ranges(batch_size))
        pin = modules.device.type == "cuda"

        def port(route: Route, peer: int, lane: Lane, depth: int) -> Port:
            there = layout.ranks[peer]
            inlet_ring = Ring(depth, max_rows, route.width, wire.dtype, pin)
            inlet = Inlet(exchange, lane, peer, inlet_ring)
            out = Ring(2, max_rows, route.width, wire.dtype, pin)
            return Port(route, inlet, out, there.stage, there.replica)

        me = entry.rank
        self._rows_in = [
            port(route, route.source, Lane.ROWS, ring)
            for route in sparse_routes(model, layout)
            if route.target == me
        ]
        activations = dense_routes(model, layout, shapes)
        self._acts_in = [
            port(route, route.source, Lane.ACTIVATIONS, 2)
            for route in activations
            if route.target == me
        ]
        self._acts_out = [
            port(route, route.target, Lane.ACTIVATION_GRADIENTS, 2)
            for route in activations
            if route.source == me
        ]

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
        return Feed(batch, ranges, reads, self.modules.dtype, str(self.modules.device))

    def expect_rows(self, step: int, num_rows: int) -> None:
        """Post the receives of a batch's pooled rows."""
        counts = [last - first for first, last in self._ranges(num_rows)]
        for port in self._rows_in:
            port.inlet.post(step, counts)

    def train(self, step: int, feed: Feed, weight_sum: float, *, keep_scores: bool) -> Outcome:
        """Forward and backward of all micro-batches; gradients end in the flat buffer."""
        self.modules.clear_gradients()
        self._begin(step, feed.batch.num_rows, gradients=True)
        outcome = Outcome()
        alive: dict[int, Alive] = {}
        for tick, micro_batch in one_forward_one_backward(self._num_micro_batches, self._num_later):
            if tick == "forward":
                found = self._forward(step, micro_batch, feed, outcome, keep_scores)
                if found is not None:
                    alive[micro_batch] = found
            elif micro_batch in alive:
                num_rows = feed.batch.num_rows
                self._backward(step, micro_batch, num_rows, alive.pop(micro_batch), weight_sum)
        return outcome

    def evaluate(self, step: int, feed: Feed) -> Outcome:
        """Forward only."""
        self._begin(step, feed.batch.num_rows, gradients=False)
        outcome = Outcome()
        with torch.no_grad():
            for micro_batch in range(self._num_micro_batches):
                self._forward(step, micro_batch, feed, outcome, keep_scores=True)
        return outcome

    def _begin(self, step: int, num_rows: int, *, gradients: bool) -> None:
        for lane in (Lane.ACTIVATIONS, Lane.ACTIVATION_GRADIENTS, Lane.ROW_GRADIENTS):
            self._exchange.settle(lane, step - 2)
        for port in self._acts_in:
            port.inlet.post(step, [share.count for share in self._shares(port, num_rows)])
        if gradients:
            for port in self._acts_out:
                port.inlet.post(step, [share.count for share in self._shares(port, num_rows)])

    def _forward(
        self, step: int, micro_batch: int, feed: Feed, outcome: Outcome, keep_scores: bool
    ) -> Alive | None:
        rows = feed.rows(micro_batch)
        count = rows.stop - rows.start
        if count == 0:
            return None
        leaves = self._assemble(step, micro_batch, count, feed.batch.num_rows)
        tensors = feed.tensors(micro_batch) | leaves
        with (
            self._watch.phase(Phase.FORWARD),
            samples(self._seed, feed.batch.epoch, feed.sample_ids(micro_batch)),
        ):
            for _ in self.modules.run(tensors):
                self._exchange.poke()
        outputs = {
            piece.tensor: tensors[piece.tensor]
            for port in self._acts_out
            for piece in port.route.pieces
        }
        self._send_activations(step, micro_batch, feed.batch.num_rows, outputs)
        loss = None
        if LOSS in tensors:
            loss = tensors[LOSS].to(self.modules.dtype)
            if "weight" in tensors:
                loss = loss * tensors["weight"]
            loss = loss.sum()
            outcome.loss_sum += float(loss.detach())
            if not math.isfinite(outcome.loss_sum) and torch.is_grad_enabled():
                # before its gradients reach ranks that could only say what they were sent
                self._on_bad_loss(step, outcome.loss_sum)
        if keep_scores and SCORE in tensors and SCORE not in leaves:
            outcome.scores.append(tensors[SCORE].detach().float().cpu())
        return Alive(leaves, outputs, loss)

    def _backward(
        self, step: int, micro_batch: int, num_rows: int, alive: Alive, weight_sum: float
    ) -> None:
        gradients = self._gather_gradients(step, micro_batch, num_rows, alive.outputs)
        roots: list[torch.Tensor] = []
        seeds: list[torch.Tensor | None] = []
        if alive.loss is not None:
            roots.append(alive.loss / weight_sum)
            seeds.append(None)
        for name, gradient in gradients.items():
            if alive.outputs[name].requires_grad:
                roots.append(alive.outputs[name])
                seeds.append(gradient)
        with self._watch.phase(Phase.BACKWARD):
            self.modules.backward(roots, seeds)
        self._exchange.poke()
        self._send_gradients(step, micro_batch, num_rows, alive.leaves)

    def _assemble(
        self, step: int, micro_batch: int, count: int, num_rows: int
    ) -> dict[str, torch.Tensor]:
        """The stage's inputs from other ranks, as leaves of the graph."""
        with self._watch.phase(Phase.WAIT_INPUTS):
            messages = []
            for port in self._rows_in + self._acts_in:
                share = self._shares(port, num_rows)[micro_batch]
                if share.count:
                    messages.append((port.route, share, port.inlet.take(step, micro_batch)))
        leaves = {}
        with self._watch.phase(Phase.ASSEMBLE):
            for name in self._external:
                width = prod(self._shapes[name])
                value = join_messages(name, width, count, messages, self.modules.dtype)
                value = value.to(self.modules.device, non_blocking=True)
                leaf = value.view(count, *self._shapes[name])
                leaves[name] = leaf.requires_grad_(torch.is_grad_enabled())
        return leaves

    def _send_activations(
        self, step: int, micro_batch: int, num_rows: int, outputs: dict[str, torch.Tensor]
    ) -> None:
        flat = {name: value.detach().reshape(len(value), -1) for name, value in outputs.items()}
        self._send(self._acts_out, Lane.ACTIVATIONS, step, micro_batch, num_rows, flat)

    def _send_gradients(
        self, step: int, micro_batch: int, num_rows: int, leaves: dict[str, torch.Tensor]
    ) -> None:
        flat = {}
        for name, leaf in leaves.items():
            gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
            flat[name] = gradient.reshape(len(leaf), -1)
        self._send(self._rows_in, Lane.ROW_GRADIENTS, step, micro_batch, num_rows, flat)
        self._send(self._acts_in, Lane.ACTIVATION_GRADIENTS, step, micro_batch, num_rows, flat)

    def _send(
        self,
        ports: list[Port],
        lane: Lane,
        step: int,
        micro_batch: int,
        num_rows: int,
        tensors: dict[str, torch.Tensor],
    ) -> None:
        with self._watch.phase(Phase.SEND):
            for port in ports:
                shares = self._shares(port, num_rows)
                share = shares[micro_batch]
                if not share.count:
                    continue
                peer = port.route.source if lane != Lane.ACTIVATIONS else port.route.target
                first = tensors[port.route.pieces[0].tensor]
                ready = first.dtype == self._wire.dtype and first.device.type == "cpu"
                if ready and is_whole(port.route, first.shape[1], (0, len(first)), share):
                    message = first.contiguous()
                elif ready and peer == self._entry.rank and len(port.route.pieces) == 1:
                    # to this rank itself, which copies it anyway: no need to do so twice
                    column = port.route.pieces[0].tensor_column
                    message = first[share.first : share.last, column : column + port.route.width]
                else:
                    blocks = port.ring.blocks(step, [share.count for share in shares])
                    message = blocks[micro_batch]
                    scale = 1.0 if lane == Lane.ACTIVATIONS else self._wire.gradient_scale
                    pack(tensors, port.route.pieces, share, message, scale)
                self._exchange.send(lane, peer, step, message)

    def _gather_gradients(
        self, step: int, micro_batch: int, num_rows: int, outputs: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Gradients of what this stage sent, summed over all the stages that read it."""
        if not outputs:
            return {}
        totals = {
            name: torch.zeros(len(value), prod(self._shapes[name]), dtype=self.modules.dtype)
            for name, value in outputs.items()
        }
        for port in self._acts_out:
            share = self._shares(port, num_rows)[micro_batch]
            if not share.count:
                continue
            with self._watch.phase(Phase.WAIT_GRADIENTS):
                message = port.inlet.take(step, micro_batch)
            for piece in port.route.pieces:
                part = message[:, piece.message_column : piece.message_column + piece.width]
                total = totals[piece.tensor][share.first : share.last]
                total.add_(part, alpha=1.0 / self._wire.gradient_scale)
        return {
            name: total.view(outputs[name].shape).to(outputs[name].device, outputs[name].dtype)
            for name, total in totals.items()
        }

    def _ranges(self, num_rows: int) -> list[Range]:
        return replica_ranges(
            num_rows, self._num_micro_batches, self._num_replicas, self._entry.replica
        )

    def _shares(self, port: Port, num_rows: int) -> list[Share]:
        """Rows that travel on a port in each micro-batch, within this replica's rows."""
        key = (port.route.source, port.route.target, port.inlet.lane, num_rows)
        if key not in self._known_shares:
            self._known_shares[key] = self._find_shares(port, num_rows)
        return self._known_shares[key]

    def _find_shares(self, port: Port, num_rows: int) -> list[Share]:
        mine = self._ranges(num_rows)
        if port.inlet.lane == Lane.ROWS:
            return [Share(0, last - first) for first, last in mine]
        there = self._layout.stages[port.peer_stage].num_ranks
        theirs = replica_ranges(num_rows, self._num_micro_batches, there, port.peer_replica)
        shares = []
        for own, other in zip(mine, theirs, strict=True):
            first, last = overlap(own, other)
            shares.append(Share(first - own[0], last - own[0]))
        return shares
