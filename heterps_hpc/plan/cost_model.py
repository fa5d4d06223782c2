"""Cost of a plan: the paper's equations, in its symbols, for every possible stage at once.

For stage i on a pool with k ranks (numbers in brackets are the paper's equations):

    CT_i = (Σ OCT · (1 − α + α/k) + F) · relief(k)                     (1) computing
    DT_i = Σ ODT · (1 − β + β/k) + cut/k + deal·(k−1)/k² + reduce(k)   (2) moving data
    ET_i = max(CT_i, DT_i) + (1 − overlap) · min(CT_i, DT_i)           (3) overlapped
    T    = Σ ET_i/m + (1 − 1/m) · max ET_i                             (4) seconds per batch
    money = num_batches · T · Σ price · units                          (5)

What the paper does not have, all functions of one stage and its k, so that the exact solver can
carry them:

    F       what a rank pays per batch and micro-batch whatever its layers
    relief  k ranks that do not fill a node have more of its memory bandwidth and clock rate each
    cut     bytes of the tensors that enter and leave the stage, forward and back, over the port
    deal    pooled rows that go from shards to replicas within the stage, over the inner link
    reduce  2 (k−1)/k · weights over the inner link, and 2 (k−1) latencies: the ring's allreduce
    drain   (4) instead of max ET_i, because our pipeline drains once per batch; tables-only
            stages work ahead and stay out of the sum when the staleness is at least one
    memory  tables are sharded, weights and activations are not: a stage needs enough ranks; saves
            beside training may copy all rows that a rank has in memory (snapshot)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heterps_hpc.layout import Estimate, Plan, Stage, StageEstimate
from heterps_hpc.plan.problem import OPTIMIZER_COPIES, Bools, Floats, Ints, Problem

EVERY_RANK_COUNT_UP_TO = 256  # beyond, rank counts go in steps of 1/128


@dataclass(frozen=True)
class Choice:
    """Layers [first, last] on a pool by so many ranks, all by index."""

    first: int
    last: int
    pool: int
    ranks: int


@dataclass(frozen=True, eq=False)
class StageTable:
    """CT, DT, ET and feasibility of every (pair of layers, pool, k); k runs over `ranks`."""

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

    @cached_property
    def ranks(self) -> Ints:
        """Candidate numbers of ranks of one stage."""
        limits = self.problem.pools.limit
        counts = np.arange(1, min(int(limits.max()), EVERY_RANK_COUNT_UP_TO) + 1)
        if limits.max() > EVERY_RANK_COUNT_UP_TO:
            steps = np.log(limits.max() / EVERY_RANK_COUNT_UP_TO) * 128
            more = np.geomspace(EVERY_RANK_COUNT_UP_TO, limits.max(), int(steps) + 2)
            counts = np.concatenate([counts, more.astype(np.int64), limits])
        return np.unique(counts)

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
    def in_sum(self) -> Bools:
        """Stages that the pipeline drains through: all but tables that work ahead."""
        if self.problem.staleness == 0:
            return np.ones(len(self.pairs), dtype=np.bool_)
        return ~self.tables_only

    @cached_property
    def traffic(self) -> tuple[Floats, Floats]:
        """Bytes per batch, one way, per pair: over cuts, and dealt within the stage."""
        first, last = self.pairs[:, 0], self.pairs[:, 1]
        cut = np.zeros(len(self.pairs))
        dealt = np.zeros(len(self.pairs))
        for writer, readers, size in self.problem.layers.tensors:
            inside = (first <= writer) & (writer <= last)
            reads = np.zeros(len(self.pairs), dtype=np.bool_)
            leaves = np.zeros(len(self.pairs), dtype=np.bool_)
            for reader in readers:
                reads |= (first <= reader) & (reader <= last)
                leaves |= reader > last
            cut += size * ((inside & leaves) | (reads & (writer < first)))
            if self.problem.layers.is_embedding[writer]:
                dealt += size * (inside & reads)
        return cut, dealt

    @cached_property
    def CT(self) -> Floats:
        """Computing seconds, [pairs, P, K] (equation 1)."""
        layers, k = self.problem.layers, self.ranks
        serial = self._sums(layers.OCT * (1 - layers.alpha))
        parallel = self._sums(layers.OCT * layers.alpha)
        fixed = self.problem.pools.fixed_seconds
        full_node = (serial + fixed)[:, :, None] + parallel[:, :, None] / k
        return np.asarray(full_node * self.relief)

    @cached_property
    def relief(self) -> Floats:
        """Seconds of k ranks on a node relative to those of a full one, [P, K]; linear in k."""
        pools = self.problem.pools
        others = np.maximum(pools.full_node_ranks - 1, 1)[:, None]
        empty = np.clip(pools.full_node_ranks[:, None] - self.ranks, 0, others) / others
        return np.asarray(1 - (1 - pools.alone)[:, None] * empty)

    @cached_property
    def DT(self) -> Floats:
        """Data-moving seconds, [pairs, P, K] (equation 2)."""
        layers, pools, k = self.problem.layers, self.problem.pools, self.ranks.astype(np.float64)
        serial = self._sums(layers.ODT * (1 - layers.beta))
        parallel = self._sums(layers.ODT * layers.beta)
        cut, dealt = self.traffic
        whole = np.array(self.pairs[:, 1] - self.pairs[:, 0] == self.problem.num_layers - 1)
        messages = 2.0 * self.problem.micro_batches * ~whole
        parallel = parallel + 2 * cut[:, None] * pools.port_seconds_per_byte
        serial = serial + messages[:, None] * pools.port_latency
        deal = 2 * dealt[:, None] * pools.inner_seconds_per_byte
        weights = self._sums(layers.weight_bytes)[:, None]
        reduce = 2 * weights * pools.reduce_seconds_per_byte
        latency = 2 * (weights > 0) * pools.reduce_latency
        alone = (k - 1) / k
        return np.asarray(
            serial[:, :, None]
            + parallel[:, :, None] / k
            + deal[:, :, None] * (alone / k)
            + reduce[:, :, None] * alone
            + latency[:, :, None] * (k - 1)
        )

    @cached_property
    def ET(self) -> Floats:
        """Seconds of a stage per batch, [pairs, P, K] (equation 3)."""
        long, short = np.maximum(self.CT, self.DT), np.minimum(self.CT, self.DT)
        return np.asarray(long + (1 - self.problem.pools.overlap)[:, None] * short)

    @cached_property
    def memory(self) -> tuple[Floats, Floats, Floats]:
        """Bytes that one rank needs, [pairs, K]: of tables, of their snapshot while it is saved,
        and of weights and activations."""
        layers, k = self.problem.layers, self.ranks
        tables = np.minimum(self._sums(layers.table_bytes)[:, None] / k, self.problem.hot_bytes)
        weights = OPTIMIZER_COPIES * self._sums(layers.weight_bytes)[:, None]
        kept = self._sums(layers.activation_bytes)[:, None] / k / self.problem.micro_batches
        # one-forward-one-backward keeps a few micro-batches alive; two are the common case
        return tables, self.problem.snapshot_share * tables, weights + 2 * kept

    @cached_property
    def fits(self) -> Bools:
        """Whether so many ranks exist and their memory is enough, [pairs, P, K]."""
        pools = self.problem.pools
        tables, snapshot, dense = self.memory
        sparse = (tables + snapshot)[:, None, :]
        host = sparse + np.where(pools.is_cpu[:, None], dense[:, None, :], 0.0)
        device = np.where(pools.is_cpu[:, None], 0.0, dense[:, None, :])
        enough = (host <= pools.memory[:, None]) & (device <= pools.device_memory[:, None])
        return np.asarray(enough & (self.ranks <= pools.limit[:, None]))

    @cached_property
    def rate(self) -> Floats:
        """$/hour of k ranks with nodes shared to the last core, [P, K]: a lower bound by node."""
        pools = self.problem.pools
        return np.asarray((pools.price / pools.ranks_per_unit)[:, None] * self.ranks)

    def pair(self, choice: Choice) -> int:
        """Row of a stage."""
        return int(self.pair_index[choice.first, choice.last])

    def column(self, ranks: int) -> int:
        """Column of a number of ranks."""
        return int(np.searchsorted(self.ranks, ranks))


def batch_seconds(problem: Problem, et: Sequence[float], in_sum: Sequence[bool]) -> float:
    """Seconds per batch of a whole plan (equation 4)."""
    m = problem.micro_batches
    drained = [seconds for seconds, joins in zip(et, in_sum, strict=True) if joins]
    ahead = [seconds for seconds, joins in zip(et, in_sum, strict=True) if not joins]
    chain = sum(drained) / m + (1 - 1 / m) * max(drained) if drained else 0.0
    return max([chain, *ahead])


def hourly_price(problem: Problem, choices: Sequence[Choice]) -> float:
    """$/hour of all ranks, by rank or by whole nodes as each pool bills."""
    pools = problem.pools
    used = np.zeros(problem.num_pools, dtype=np.int64)
    for choice in choices:
        used[choice.pool] += choice.ranks
    return float((-(-used // pools.ranks_per_unit) * pools.price).sum())


def money_of(problem: Problem, seconds: float, per_hour: float) -> float:
    """$ of the whole job (equation 5)."""
    return problem.num_batches * seconds / 3600.0 * per_hour


def within_limits(problem: Problem, choices: Sequence[Choice]) -> bool:
    """Whether every pool has the ranks that its stages ask for together."""
    used = np.zeros(problem.num_pools, dtype=np.int64)
    for choice in choices:
        used[choice.pool] += choice.ranks
    return bool((used <= problem.pools.limit).all())


def estimate(table: StageTable, choices: Sequence[Choice]) -> Estimate:
    """What the plan is predicted to do and to cost."""
    problem = table.problem
    cells = [(table.pair(c), c.pool, table.column(c.ranks)) for c in choices]
    et = [float(table.ET[cell]) for cell in cells]
    in_sum = [bool(table.in_sum[cell[0]]) for cell in cells]
    seconds = batch_seconds(problem, et, in_sum)
    per_hour = hourly_price(problem, choices)
    return Estimate(
        samples_per_second=problem.batch_size / seconds,
        seconds_per_batch=seconds,
        binding_stage=int(np.argmax(et)),
        stages=tuple(
            StageEstimate(
                compute_seconds=float(table.CT[cell]),
                move_seconds=float(table.DT[cell]),
                seconds=float(table.ET[cell]),
            )
            for cell in cells
        ),
        hours=problem.num_batches * seconds / 3600.0,
        money_per_hour=per_hour,
        money=money_of(problem, seconds, per_hour),
        from_data_sheet=bool(any(problem.pools.estimated[c.pool] for c in choices)),
    )


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


def stages_of(placement: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first, last, pool) of every maximal run of layers on one pool."""
    runs: list[tuple[int, int, int]] = []
    first = 0
    for index in range(1, len(placement) + 1):
        if index == len(placement) or placement[index] != placement[first]:
            runs.append((first, index - 1, int(placement[first])))
            first = index
    return runs
