"""Cost of a plan: the paper's equations, in its symbols, for every possible stage.

For stage i on a pool with k ranks (numbers in brackets are the paper's equations):

    CT_i = (Σ OCT · (1 − α + α/k) + F) · relief(k) + messages(k)           (1) computing
    DT_i = Σ ODT · (1 − β + β/k) + exchange·(k−1)/k² + reduce(k)           (2) moving data
    ET_i = max(CT_i, DT_i) + (1 − overlap) · min(CT_i, DT_i)               (3) overlapped
    T    = of all ET_i together: pipeline.py                               (4) seconds per batch
    money = num_batches · T · Σ price · units                              (5)

What the paper does not have, all but one functions of one stage and its k, so that the exact
solver can carry them:

    F         what a rank pays per batch and micro-batch whatever its layers
    relief    k ranks that do not fill a node have more of its memory bandwidth and clock rate each
    messages  processor time of every byte and message that a rank sends or receives: it packs and
              copies itself
    cut       bytes of activations and gradients that the stage sends over the uplink, and gets over
              it meanwhile. A link is a part of the pipeline (4) like a stage: it carries one
              micro-batch while ranks compute another. A transfer is charged to its sender
    waits     what is missing in `cut` where the other end is slower: a transfer takes as long as
              the slower of its ends. The one term of two stages: neighbours, where they meet
    rows      pooled rows that cross the stage's ends, and their gradients: they go both ways at
              once alongside computing, so the uplink only keeps a batch from being faster than
              one way, and the loop of staleness (4) waits for one micro-batch of them
    exchange  pooled rows that go from shards to replicas within the stage, over the inner link: one
              way if the rows are prefetched, as then only their gradients are waited for
    reduce    2 (k−1)/k · weights over the inner link, and 2 (k−1) latencies: the ring's allreduce
    once      (1 − overlap) · (embeddings' part of CT + reduce), of ET: a batch is pulled, pushed
              and summed as a whole, not by micro-batches, so (4) does not pipeline it
    memory    tables are sharded, weights and activations are not: a stage needs enough ranks; saves
              alongside training may copy all rows that a rank has in memory (snapshot)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.layout import Estimate, Plan, Stage, StageEstimate
from heterps_hpc.plan.pipeline import PlanParts
from heterps_hpc.plan.problem import OPTIMIZER_COPIES, Bools, Floats, Ints, Problem
from heterps_hpc.plan.stage_terms import StageTerms
from heterps_hpc.planning_result import MemoryUse

Index = int | Ints
Number = TypeVar("Number", float, Floats)
ROUNDING = 1e-12  # relative: what sums in another order may differ by


@dataclass(frozen=True)
class Choice:
    """Layers [first, last] on a pool by so many ranks, all by index."""

    first: int
    last: int
    pool: int
    ranks: int


@dataclass(frozen=True)
class PlanCost:
    """What one plan takes and costs, and what it breaks."""

    seconds: float  # T, per batch
    per_hour: float  # $
    fits: bool  # every stage into the memory of its ranks
    over_limit: frozenset[int]  # pools that have fewer ranks than the plan uses
    meets_floor: bool

    @property
    def valid(self) -> bool:
        """Whether the plan can run and is fast enough."""
        return self.fits and not self.over_limit and self.meets_floor


@dataclass(frozen=True, eq=False)
class PlanCosts:
    """What many plans take and cost."""

    seconds: Floats  # [N]
    per_hour: Floats  # [N]
    used: Ints  # [N, P]: ranks of each pool


class StageSeconds(NamedTuple):
    """What a stage takes per batch."""

    once: Floats  # for the whole batch at once: tables, and summing dense gradients
    spread: Floats  # over its micro-batches

    @property
    def whole(self) -> Floats:
        """ET."""
        return np.asarray(self.once + self.spread)


class StageMemory(NamedTuple):
    """Bytes that one rank of a stage needs."""

    tables: Floats
    snapshot: Floats  # copies of rows while they are saved
    dense: Floats  # weights, optimizer state, activations


def _exchanged(ranks: Index, max_ranks: Index) -> Floats:
    """(k − 1)/k², the part of a stage's rows that one rank sends to others, at its least.

    It rises up to k = 2 and falls from there, so over a range it is least at one of the ends.
    """
    low, high = np.asarray(ranks, dtype=np.float64), np.asarray(max_ranks, dtype=np.float64)
    return np.asarray(np.minimum((low - 1) / low**2, (high - 1) / high**2))


@dataclass(frozen=True, eq=False)
class StageTable(StageTerms):
    """CT, DT, ET and memory of every stage: a pair of layers (`pairs`), a pool, ranks.

    Methods take arrays of pairs, pools and rank counts that broadcast against each other.
    """

    def relief(self, pool: Index, ranks: Index) -> Floats:
        """Seconds of k ranks on a node relative to those of a full one; linear in k."""
        pools = self.problem.pools
        full = pools.full_node_ranks[pool]
        others = np.maximum(full - 1, 1)
        empty = np.clip(full - ranks, 0, others) / others
        return np.asarray(1 - (1 - pools.alone[pool]) * empty)

    def compute_seconds(self, pair: Index, pool: Index, ranks: Index) -> Floats:
        """CT, computing (equation 1), tables included."""
        tables = self._tables_seconds(pair, pool, ranks, ranks)
        return np.asarray(tables + self._spread_compute(pair, pool, ranks, ranks))

    def _tables_seconds(self, pair: Index, pool: Index, ranks: Index, max_ranks: Index) -> Floats:
        """Pulls and pushes of a batch: whole ones, whatever its micro-batches."""
        terms = self.compute_terms
        tables = terms.tables_serial[pair, pool] + terms.tables_parallel[pair, pool] / max_ranks
        return np.asarray(tables * self.relief(pool, ranks))

    def _spread_compute(self, pair: Index, pool: Index, ranks: Index, max_ranks: Index) -> Floats:
        """Computing that every micro-batch has its part of."""
        terms = self.compute_terms
        layers = terms.serial[pair, pool] + terms.parallel[pair, pool] / max_ranks
        layers = layers + terms.fixed[pair, pool]
        messages = terms.messages[pair, pool] + terms.message_bytes[pair, pool] / max_ranks
        exchanged = terms.exchange_messages[pair, pool] * (np.asarray(ranks) - 1)
        exchanged = exchanged + terms.exchange_bytes[pair, pool] * _exchanged(ranks, max_ranks)
        return np.asarray(layers * self.relief(pool, ranks) + messages + exchanged)

    def move_seconds(self, pair: Index, pool: Index, ranks: Index) -> Floats:
        """Moving data: DT (equation 2), and what crosses a cut."""
        reduce = self._reduce_seconds(pair, pool, ranks)
        moving = reduce + self._spread_move(pair, pool, ranks, ranks)
        return np.asarray(moving + self.cut_seconds(pair, pool, ranks))

    def _reduce_seconds(self, pair: Index, pool: Index, ranks: Index) -> Floats:
        """Of dense gradients, once per batch; it grows with ranks."""
        terms, k = self.move_terms, np.asarray(ranks, dtype=np.float64)
        by_bytes = terms.reduce[pair, pool] * ((k - 1) / k)
        return np.asarray(by_bytes + terms.reduce_latency[pair, pool] * (k - 1))

    def _spread_move(self, pair: Index, pool: Index, ranks: Index, max_ranks: Index) -> Floats:
        """Moving that every micro-batch has its part of."""
        terms = self.move_terms
        return np.asarray(
            terms.serial[pair, pool]
            + terms.parallel[pair, pool] / np.asarray(max_ranks, dtype=np.float64)
            + terms.exchange[pair, pool] * _exchanged(ranks, max_ranks)
        )

    def parts(
        self, pair: Index, pool: Index, ranks: Index, max_ranks: Index | None = None
    ) -> StageSeconds:
        """What a stage takes per batch (equation 3).

        With `max_ranks`, what no count from `ranks` to `max_ranks` goes below: each term at the end
        of the range where it is least.
        """
        most = ranks if max_ranks is None else max_ranks
        ct, dt = (of(pair, pool, ranks, most) for of in (self._spread_compute, self._spread_move))
        tables = self._tables_seconds(pair, pool, ranks, most)
        reduce = self._reduce_seconds(pair, pool, ranks)
        hidden = self.problem.pools.overlap[pool]
        # ET less `once`, so written that it grows with every term
        spread = np.maximum(
            ct + hidden * tables + (1 - hidden) * dt, dt + hidden * reduce + (1 - hidden) * ct
        )
        return StageSeconds((1 - hidden) * (tables + reduce), spread)

    def stage_seconds(
        self, pair: Index, pool: Index, ranks: Index, max_ranks: Index | None = None
    ) -> Floats:
        """Seconds of a batch in a stage and on its link, one after the other: ET (equation 3), and
        what crosses a cut; with `max_ranks`, see `parts`."""
        most = ranks if max_ranks is None else max_ranks
        own = self.parts(pair, pool, ranks, max_ranks).whole
        return np.asarray(own + self.cut_seconds(pair, pool, most))

    def plan_parts(
        self, pair: Index, pool: Index, ranks: Index, max_ranks: Index | None = None
    ) -> PlanParts:
        """What a stage by itself adds to equation 4; with `max_ranks`, see `parts`."""
        most = ranks if max_ranks is None else max_ranks
        parts, in_chain = self.parts(pair, pool, ranks, max_ranks), self.in_chain[pair]
        summed, cut = self.problem.pipeline.summed(*parts), self.cut_seconds(pair, pool, most)
        return PlanParts(
            np.where(in_chain, summed + cut, 0.0),
            np.where(in_chain, np.maximum(parts.spread, cut), 0.0),
            np.where(in_chain, 0.0, parts.whole),
            self.rows_seconds(pair, pool, most),
        )

    def rows_seconds(self, pair: Index, pool: Index, ranks: Index) -> Floats:
        """Seconds that pooled rows, or their gradients, need of the uplink (in equation 4)."""
        return np.asarray(self.traffic.rows[pair] * self.way_out(pool, ranks))

    def cut_seconds(self, pair: Index, pool: Index, ranks: Index) -> Floats:
        """Seconds that activations and gradients that cross the stage's ends need of the uplink."""
        return np.asarray(self.traffic.cut[pair] * self.way_out(pool, ranks))

    def way_out(self, pool: Index, ranks: Index) -> Floats:
        """Seconds that a byte takes over the links of k ranks together."""
        return np.asarray(self.problem.pools.uplink_seconds_per_byte[pool] / ranks)

    def memory(self, pair: Index, ranks: Index) -> StageMemory:
        """Bytes that one rank needs."""
        tables, weights, activations = (size[pair] for size in self.stage_bytes)
        held = np.minimum(tables / ranks, self.problem.hot_bytes)
        # one-forward-one-backward keeps a few micro-batches in flight; two are the common case
        kept = 2 * activations / ranks / self.problem.micro_batches
        snapshot = self.problem.snapshot_share * held
        return StageMemory(held, snapshot, OPTIMIZER_COPIES * weights + kept)

    def fits(self, pair: Index, pool: Index, ranks: Index) -> Bools:
        """Whether the pool has so many ranks and their memory is enough."""
        pools = self.problem.pools
        tables, snapshot, dense = self.memory(pair, ranks)
        is_cpu = pools.is_cpu[pool]
        host = tables + snapshot + np.where(is_cpu, dense, 0.0)
        device = np.where(is_cpu, 0.0, dense)
        enough = (host <= pools.memory[pool]) & (device <= pools.device_memory[pool])
        return np.asarray(enough & (ranks <= pools.limit[pool]))

    def rate(self, pool: Index, ranks: Index) -> Floats:
        """$/hour of k ranks with nodes shared to the last core: a lower bound by node."""
        pools = self.problem.pools
        return np.asarray(pools.price[pool] / pools.ranks_per_unit[pool] * ranks)

    def evaluate_many(self, pair: Ints, pool: Ints, ranks: NDArray[np.integer[Any]]) -> PlanCosts:
        """What plans take and cost, given by stages [N, S]; an entry with 0 ranks is no stage."""
        problem, exists = self.problem, ranks > 0
        row = np.nonzero(exists)[0]
        pair, pool, count = pair[exists], pool[exists], ranks[exists].astype(np.int64)
        parts = [np.zeros(ranks.shape) for _ in PlanParts._fields]
        for part, own in zip(parts, self.plan_parts(pair, pool, count), strict=True):
            part[exists] = own
        chain, *maxima = parts
        waits = self._waits(row, pair, self.way_out(pool, count), len(ranks))
        cell = row * problem.num_pools + pool
        used = np.bincount(cell, count, len(ranks) * problem.num_pools).astype(np.int64)
        used = used.reshape(len(ranks), problem.num_pools)
        return PlanCosts(
            seconds=problem.pipeline.batch_seconds(
                PlanParts(chain.sum(axis=1) + waits, *(part.max(axis=1) for part in maxima))
            ),
            per_hour=(-(-used // problem.pools.ranks_per_unit) * problem.pools.price).sum(axis=1),
            used=used,
        )

    def _waits(self, row: Ints, pair: Ints, way_out: Floats, num_plans: int) -> Floats:
        """What the chains of plans take longer because transfers between two neighbours take as
        long as the slower end, and not as long as both on average; `row` is the plan of a stage."""
        ends, begins = (np.zeros((num_plans, self.problem.num_layers + 1)) for _ in range(2))
        ends[row, self.pairs[pair, 1] + 1] = way_out
        begins[row, self.pairs[pair, 0]] = way_out
        return np.asarray(np.abs(ends - begins) @ self.handed_over)

    def evaluate(self, choices: Sequence[Choice]) -> PlanCost:
        """What one plan takes and costs, and what it breaks."""
        pair, pool, ranks = self.cells(choices)
        costs = self.evaluate_many(pair[None], pool[None], ranks[None])
        seconds = float(costs.seconds[0])
        over = np.flatnonzero(costs.used[0] > self.problem.pools.limit)
        return PlanCost(
            seconds=seconds,
            per_hour=float(costs.per_hour[0]),
            fits=bool(self.fits(pair, pool, ranks).all()),
            over_limit=frozenset(over.tolist()),
            meets_floor=seconds <= self.problem.longest_batch * (1 + ROUNDING),
        )

    def cells(self, choices: Sequence[Choice]) -> tuple[Ints, Ints, Ints]:
        """Pairs, pools and ranks of stages."""
        pair = self.pair_index[[c.first for c in choices], [c.last for c in choices]]
        return pair, np.array([c.pool for c in choices]), np.array([c.ranks for c in choices])


def money_of(problem: Problem, seconds: Number, per_hour: Number) -> Number:
    """$ of the whole job (equation 5)."""
    return problem.num_batches * seconds / 3600.0 * per_hour


def estimate(table: StageTable, choices: Sequence[Choice]) -> Estimate:
    """What the plan is predicted to do and to cost."""
    problem = table.problem
    cells, cost = table.cells(choices), table.evaluate(choices)
    ct, dt, et = (
        of(*cells).tolist()
        for of in (table.compute_seconds, table.move_seconds, table.stage_seconds)
    )
    return Estimate(
        samples_per_second=problem.batch_size / cost.seconds,
        seconds_per_batch=cost.seconds,
        binding_stage=int(np.argmax(et)),
        stages=tuple(
            StageEstimate(compute_seconds=compute, move_seconds=move, seconds=seconds)
            for compute, move, seconds in zip(ct, dt, et, strict=True)
        ),
        hours=problem.num_batches * cost.seconds / 3600.0,
        money_per_hour=cost.per_hour,
        money=money_of(problem, cost.seconds, cost.per_hour),
        from_data_sheet=bool(any(problem.pools.estimated[c.pool] for c in choices)),
    )


def memory_of(table: StageTable, choices: Sequence[Choice]) -> tuple[MemoryUse, ...]:
    """The memory of one rank, stage by stage, as the plan counted it."""
    pools = table.problem.pools
    pair, _, ranks = table.cells(choices)
    parts = np.stack(np.broadcast_arrays(*table.memory(pair, ranks)), axis=1).tolist()
    uses = []
    for choice, (tables, snapshot, dense) in zip(choices, parts, strict=True):
        device = float(pools.device_memory[choice.pool])
        uses.append(
            MemoryUse(
                tables=tables,
                snapshot=snapshot,
                dense=dense,
                dense_on_device=not pools.is_cpu[choice.pool],
                limit=float(pools.memory[choice.pool]),
                device_limit=device if device < float("inf") else None,
            )
        )
    return tuple(uses)


def to_plan(table: StageTable, choices: Sequence[Choice], scheduler: str) -> Plan:
    """Name the layers and pools of a decision."""
    problem = table.problem
    return Plan(
        stages=tuple(
            Stage(
                pool=problem.pools.names[c.pool],
                layers=problem.layers.names[c.first : c.last + 1],
                num_ranks=c.ranks,
            )
            for c in choices
        ),
        estimate=estimate(table, choices),
        scheduler=scheduler,
    )


def placement_of(choices: Sequence[Choice]) -> list[int]:
    """The pool of every layer."""
    return [choice.pool for choice in choices for _ in range(choice.first, choice.last + 1)]


def stages_of(placement: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first, last, pool) of every maximal run of layers on one pool."""
    runs: list[tuple[int, int, int]] = []
    first = 0
    for index in range(1, len(placement) + 1):
        if index == len(placement) or placement[index] != placement[first]:
            runs.append((first, index - 1, int(placement[first])))
            first = index
    return runs
