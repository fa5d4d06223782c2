"""What equations 1 and 2 sum over the layers of a stage: once for every stage and pool.

A stage is a pair of layers, its first and its last; all pairs are in `pairs`. What a term is
multiplied with for k ranks is said beside it, and done in cost_model.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from heterps_hpc.plan.problem import Bools, Floats, Ints, Problem


class ComputeTerms(NamedTuple):
    """Of equation 1, seconds per batch."""

    fixed: Floats
    tables_serial: Floats  # of embeddings
    tables_parallel: Floats  # divided by k
    serial: Floats  # of all other layers
    parallel: Floats  # divided by k
    messages: Floats
    message_bytes: Floats  # divided by k
    exchange_messages: Floats  # times (k−1)
    exchange_bytes: Floats  # times (k−1)/k²


class MoveTerms(NamedTuple):
    """Of equation 2, seconds per batch."""

    serial: Floats
    parallel: Floats  # divided by k
    exchange: Floats  # times (k−1)/k²
    reduce: Floats  # times (k−1)/k
    reduce_latency: Floats  # times (k−1)


class Traffic(NamedTuple):
    """Bytes per batch, one way, of every pair."""

    cut: Floats  # activations
    rows: Floats  # pooled rows that cross the stage's ends
    exchanged: Floats  # pooled rows within the stage


@dataclass(frozen=True, eq=False)
class StageTerms:
    """The terms of one question, summed over layers."""

    problem: Problem

    @cached_property
    def pairs(self) -> Ints:
        """All (first, last) with first ≤ last."""
        first, last = np.triu_indices(self.problem.num_layers)
        return np.stack([first, last], axis=1)

    @cached_property
    def pair_index(self) -> Ints:
        """(first, last) → row of `pairs`."""
        index = np.full((self.problem.num_layers, self.problem.num_layers), -1)
        index[self.pairs[:, 0], self.pairs[:, 1]] = np.arange(len(self.pairs))
        return index

    def _sums(self, per_layer: Floats) -> Floats:
        """Sums over layers first..last of [L, ...] values, by prefix sums."""
        prefix = np.concatenate([np.zeros((1, *per_layer.shape[1:])), np.cumsum(per_layer, axis=0)])
        out: Floats = prefix[self.pairs[:, 1] + 1] - prefix[self.pairs[:, 0]]
        return np.maximum(out, 0.0)

    @cached_property
    def tables_only(self) -> Bools:
        """Stages without dense layers, per pair."""
        dense = self._sums((~self.problem.layers.is_embedding).astype(np.float64))
        return np.asarray(dense < 0.5)

    @cached_property
    def in_chain(self) -> Bools:
        """Stages that the pipeline drains through, per pair: all but those of tables alone."""
        return ~self.tables_only

    @cached_property
    def traffic(self) -> Traffic:
        """Bytes per batch, one way, per pair."""
        first, last = self.pairs[:, 0], self.pairs[:, 1]
        cut = np.zeros(len(self.pairs))
        rows = np.zeros(len(self.pairs))
        exchanged = np.zeros(len(self.pairs))
        for writer, readers, size in self.problem.layers.tensors:
            inside = (first <= writer) & (writer <= last)
            reads = np.zeros(len(self.pairs), dtype=np.bool_)
            leaves = np.zeros(len(self.pairs), dtype=np.bool_)
            for reader in readers:
                reads |= (first <= reader) & (reader <= last)
                leaves |= reader > last
            crosses = size * ((inside & leaves) | (reads & (writer < first)))
            if self.problem.layers.is_embedding[writer]:
                rows += crosses
                exchanged += size * (inside & reads)
            else:
                cut += crosses
        return Traffic(cut, rows, exchanged)

    @cached_property
    def handed_over(self) -> Floats:
        """Activations, bytes per batch and one way, that the layer before each position [L+1] in
        the list of layers writes and the one at it reads: what two stages that meet there have for
        each other, whatever else is in them."""
        handed = np.zeros(self.problem.num_layers + 1)
        embeds = self.problem.layers.is_embedding
        for writer, readers, size in self.problem.layers.tensors:
            after = writer + 1
            if after in readers and not embeds[writer] and not embeds[after]:
                handed[after] += size
        return handed

    @cached_property
    def compute_terms(self) -> ComputeTerms:
        """Sums of equation 1, [pairs, P]."""
        layers, pools, traffic = self.problem.layers, self.problem.pools, self.traffic
        tables = layers.OCT * layers.is_embedding[:, None]
        byte, message = 2 * pools.message_seconds_per_byte, 2 * pools.message_seconds
        fixed = np.where(self.tables_only[:, None], pools.tables_fixed_seconds, pools.fixed_seconds)
        crosses = (traffic.cut + traffic.rows > 0)[:, None] * self.problem.micro_batches
        exchanges = (traffic.exchanged > 0)[:, None] * self.problem.micro_batches
        return ComputeTerms(  # a tensor and its gradient: twice of everything
            fixed=fixed,
            tables_serial=self._sums(tables * (1 - layers.alpha)),
            tables_parallel=self._sums(tables * layers.alpha),
            serial=self._sums((layers.OCT - tables) * (1 - layers.alpha)),
            parallel=self._sums((layers.OCT - tables) * layers.alpha),
            messages=crosses * 2 * pools.cut_message_seconds,
            message_bytes=2 * (traffic.cut + traffic.rows)[:, None] * pools.cut_seconds_per_byte,
            # within a stage every rank is at both ends of it
            exchange_messages=2 * exchanges * message,
            exchange_bytes=2 * traffic.exchanged[:, None] * byte,
        )

    @cached_property
    def move_terms(self) -> MoveTerms:
        """Sums of equation 2, [pairs, P]."""
        layers, pools = self.problem.layers, self.problem.pools
        traffic = self.traffic
        exchange_ways = 2 if self.problem.staleness == 0 else 1
        waited_for = traffic.cut if self.problem.staleness else traffic.cut + traffic.rows
        messages = 2.0 * self.problem.micro_batches * (waited_for > 0)
        weights = self._sums(layers.weight_bytes)[:, None]
        return MoveTerms(
            serial=self._sums(layers.ODT * (1 - layers.beta))
            + messages[:, None] * pools.uplink_latency,
            parallel=self._sums(layers.ODT * layers.beta),
            exchange=exchange_ways * traffic.exchanged[:, None] * pools.inner_seconds_per_byte,
            reduce=2 * weights * pools.reduce_seconds_per_byte,
            reduce_latency=2 * (weights > 0) * pools.reduce_latency,
        )

    @cached_property
    def stage_bytes(self) -> tuple[Floats, Floats, Floats]:
        """Bytes of tables, weights and activations of a whole stage, per pair."""
        layers = self.problem.layers
        sizes = (layers.table_bytes, layers.weight_bytes, layers.activation_bytes)
        tables, weights, activations = (self._sums(size) for size in sizes)
        return tables, weights, activations
