"""docs/cost-model.md, written again from the page alone, against the cost model."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heterps_hpc.cluster import Cluster, Link
from heterps_hpc.plan.cost_model import Choice, StageTable, estimate
from heterps_hpc.plan.problem import make_problem
from heterps_hpc.profile import Profile
from tests.plan.instances import random_cluster, random_profile, with_peers

Stage = tuple[int, int, str, int]  # first layer, last layer, pool, ranks


class Page:
    """The page's formulas, one after the other; nothing of heterps_hpc.plan is used."""

    def __init__(
        self, profile: Profile, cluster: Cluster, *, B: int, m: int, s: int, N: float,
        hot_bytes: float | None, saves: bool,
    ) -> None:  # fmt: skip
        self.profile, self.cluster = profile, cluster
        self.B, self.m, self.s, self.N = B, m, s, N
        self.hot_bytes = math.inf if hot_bytes is None else hot_bytes
        self.copies = 2 if saves else 1
        self.order = [layer.name for layer in profile.layers]

    def known(self, a: str, b: str) -> tuple[float, float] | None:
        for link in (*self.profile.links, *self.cluster.links):
            if set(link.pools) == {a, b}:
                return link.latency_seconds, 1 / link.bytes_per_second
        return None

    def link(self, a: str, b: str) -> tuple[float, float]:
        return self.known(a, b) or (30e-6, 1 / 1.25e9)

    def own(self, pool: str) -> tuple[float, float]:
        latency, w = self.link(pool, pool)
        known = [set(link.pools) for link in self.profile.links]
        if self.known(pool, pool) and {pool} not in known:
            mine = [1 / link.bytes_per_second for link in self.profile.links if pool in link.pools]
            w = min((own for own in mine if w <= own <= 1.1 * w), default=w)
        return latency, w

    def to_other(self, pool: str, other: str) -> float:
        w, theirs = self.link(pool, other)[1], self.known(other, other)
        mine = self.known(pool, pool)
        return self.own(pool)[1] if mine and theirs and w <= 1.1 * theirs[1] else w

    def seconds(self, stage: Stage) -> tuple[float, float, float, float, float]:
        """once, spread, then of the stage's link: rows, cut, way_out."""
        first, last, pool, k = stage
        fixed, scale = self.profile.pool(pool), self.B / self.profile.batch_size
        times = [self.profile.timing(name, pool) for name in self.order[first : last + 1]]
        R, F = fixed.full_node_ranks, fixed.batch_seconds + self.m * fixed.micro_batch_seconds
        own_layers = self.profile.layers[first : last + 1]
        if all(layer.is_embedding for layer in own_layers):
            F = F if fixed.tables_batch_seconds is None else fixed.tables_batch_seconds
        relief = 1 if R == 1 else 1 - (1 - fixed.alone) * max(R - k, 0) / (R - 1)
        OCT = {True: 0.0, False: 0.0}  # of embeddings and of other layers
        for t, layer in zip(times, own_layers, strict=True):
            keys = layer.keys_per_sample * self.B
            seconds = t.compute_seconds * scale
            seconds += fixed.new_row_seconds * min(layer.table_rows_total * self.B / self.N, keys)
            seconds += fixed.read_key_seconds * keys * max(0, 1 - self.profile.window_rows / self.N)
            own = seconds * (1 - t.compute_parallel + t.compute_parallel / k)
            OCT[layer.is_embedding] += own
        DT = sum(
            t.move_seconds * scale * (1 - t.move_parallel + t.move_parallel / k) for t in times
        )
        in_latency, w_in = self.own(pool)
        others = [other.name for other in self.cluster.pools if other.name != pool] or [pool]
        ups = [self.link(pool, other) for other in others]
        up_latency = max(in_latency, min(up[0] for up in ups))
        w_up = max(w_in, min(self.to_other(pool, other) for other in others))
        cut_bytes, cut_rows, row_bytes = 0.0, 0.0, 0.0
        for tensor in self.profile.tensors:
            writer = self.order.index(tensor.writer)
            readers = [self.order.index(name) for name in tensor.readers]
            inside, read = first <= writer <= last, any(first <= r <= last for r in readers)
            size = tensor.bytes_per_sample * self.B
            pooled_rows = self.profile.layers[writer].is_embedding
            if (writer < first and read) or (inside and max(readers) > last):
                if pooled_rows:
                    cut_rows += size
                else:
                    cut_bytes += size
            if inside and read and pooled_rows:
                row_bytes += size
        mu, nu = fixed.message_seconds_per_byte, fixed.message_seconds
        mu_cut, nu_cut = fixed.cut_seconds_per_byte, 0.0
        if mu_cut is None:
            mu_cut, nu_cut = mu, nu
        messages = 2 * mu_cut * (cut_bytes + cut_rows) / k + 4 * mu * row_bytes * (k - 1) / k**2
        messages += 2 * self.m * nu_cut * (cut_bytes + cut_rows > 0)
        messages += 4 * self.m * nu * (k - 1) * (row_bytes > 0)
        if cut_bytes > 0 or (self.s == 0 and cut_rows > 0):
            DT += 2 * self.m * up_latency
        DT += (2 if self.s == 0 else 1) * w_in * row_bytes * (k - 1) / k**2
        weights = sum(layer.weight_bytes_total for layer in self.profile.layers[first : last + 1])
        w_red, red_latency = fixed.reduce_seconds_per_byte, fixed.reduce_latency_seconds
        reduce = 0.0
        if weights:
            reduce += 2 * (w_in if w_red is None else w_red) * weights * (k - 1) / k
            reduce += 2 * (in_latency if red_latency is None else red_latency) * (k - 1)
        CT = (F + OCT[True] + OCT[False]) * relief + messages
        DT += reduce
        ET = max(CT, DT) + (1 - fixed.overlap) * min(CT, DT)
        once = (1 - fixed.overlap) * (OCT[True] * relief + reduce)
        return once, ET - once, w_up * cut_rows / k, w_up * cut_bytes / k, w_up / k

    def handed(self, layer: int) -> float:
        """Bytes per batch that the layer before one gives to it."""
        one, other = self.profile.layers[layer - 1 : layer + 1]
        return sum(
            tensor.bytes_per_sample * self.B
            for tensor in self.profile.tensors
            if tensor.writer == one.name and other.name in tensor.readers
            if not one.is_embedding and not other.is_embedding
        )

    def plan(self, stages: list[Stage]) -> tuple[float, float]:
        once, chain, tables, rows = 0.0, [0.0], [0.0], [0.0]
        cuts, waits, out_before = [0.0], 0.0, None
        for stage in stages:
            layers = self.profile.layers[stage[0] : stage[1] + 1]
            tables_only = all(layer.is_embedding for layer in layers)
            own_once, spread, own_rows, cut, way_out = self.seconds(stage)
            if out_before is not None:
                waits += self.handed(stage[0]) * abs(way_out - out_before)
            out_before = way_out
            if tables_only:
                tables.append(own_once + spread)
            else:
                once += own_once
                chain.append(spread)
                cuts.append(cut)
            rows.append(own_rows)
        drain = once + (sum(chain) + sum(cuts) + waits) / self.m
        drain += (1 - 1 / self.m) * max(*chain, *cuts)
        loop = max(tables) + 2 / self.m * max(rows) + drain
        T = max(drain, *tables, *rows, loop / (self.s + 1))
        price = 0.0
        for pool in self.cluster.pools:
            ranks = sum(stage[3] for stage in stages if stage[2] == pool.name)
            n = pool.cores_per_node // pool.cores_per_rank
            n = min(n, pool.gpus_per_node) if pool.device == "cuda" else n
            price += pool.price_per_hour * (
                math.ceil(ranks / n) if pool.billing == "node" else ranks
            )
        return T, self.N / self.B * T / 3600 * price

    def fits(self, stage: Stage) -> bool:
        first, last, pool_name, k = stage
        layers, pool = self.profile.layers[first : last + 1], self.cluster.pool(pool_name)
        host = min(sum(x.table_bytes_total for x in layers) / k, self.hot_bytes) * self.copies
        dense = 4 * sum(x.weight_bytes_total for x in layers)
        dense += 2 * sum(x.activation_bytes for x in layers) * self.B / (k * self.m)
        n = pool.cores_per_node // pool.cores_per_rank
        if pool.device == "cpu":
            return host + dense <= pool.memory_per_node_gb * 1e9 / n
        n = min(n, pool.gpus_per_node)
        on_device = pool.gpu_memory_gb is None or dense <= pool.gpu_memory_gb * 1e9
        return host <= pool.memory_per_node_gb * 1e9 / n and on_device


def _with_devices(rng: np.random.Generator, cluster: Cluster) -> Cluster:
    """Some pools get devices, so that their memory and their ranks per node count too."""
    pools = tuple(
        pool.model_copy(
            update={
                "device": "cuda", "gpus_per_node": int(rng.integers(1, 3)),
                "gpu_memory_gb": None if rng.random() < 0.3 else float(rng.uniform(1e-4, 0.02)),
            }
        ) if rng.random() < 0.4 else pool
        for pool in cluster.pools
    )  # fmt: skip
    links = cluster.links if rng.random() < 0.7 else cluster.links[::2]  # some are not named
    return cluster.model_copy(update={"pools": pools, "links": links})


@pytest.mark.parametrize("seed", range(30))
def test_the_page_determines_the_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_layers, num_pools = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    cluster = _with_devices(rng, random_cluster(rng, num_pools, 9))
    names = [pool.name for pool in cluster.pools]
    profile = with_peers(rng, random_profile(rng, num_layers, names))
    measured = [
        timing.model_copy(
            update={
                "micro_batch_seconds": float(rng.uniform(0, 1e-3)),
                "new_row_seconds": float(rng.uniform(0, 1e-5)),
                "reduce_seconds_per_byte": None if rng.random() < 0.5 else 1e-9,
                "reduce_latency_seconds": None if rng.random() < 0.5 else 2e-5,
            }
        )
        for timing in profile.pools
    ]
    layers = [
        layer.model_copy(
            update={
                "table_rows_total": float(rng.choice([1e5, 1e7])) * layer.is_embedding,
                "keys_per_sample": 10.0 * layer.is_embedding,
            }
        )
        for layer in profile.layers
    ]
    links = cluster.links[:1]
    if num_pools > 1:  # about as fast as the second pool's card is said to be
        card = [link.bytes_per_second for link in cluster.links if set(link.pools) == {names[1]}]
        rate = (card or [1e9])[0] * float(rng.uniform(0.85, 1.05))
        links += (Link(pools=(names[0], names[1]), latency_seconds=1e-5, bytes_per_second=rate),)
    profile = profile.model_copy(
        update={"pools": tuple(measured), "layers": tuple(layers), "links": links}
    )
    B, m, s = int(rng.choice([50, 200])), int(rng.choice([1, 2, 5])), int(rng.integers(0, 2))
    hot, saves = (None if rng.random() < 0.5 else 2e8), bool(rng.random() < 0.5)
    page = Page(profile, cluster, B=B, m=m, s=s, N=1e6, hot_bytes=hot, saves=saves)
    problem = make_problem(
        profile, cluster, batch_size=B, num_samples=1e6, micro_batches=m, staleness=s,
        hot_bytes=hot, snapshot_share=1.0 if saves else 0.0,
    )  # fmt: skip
    table = StageTable(problem)
    for _ in range(20):
        cuts = sorted({0, *rng.integers(0, num_layers, 2).tolist()})
        pools, before = [], -1
        for _cut in cuts:
            others = [p for p in range(num_pools) if p != before] or [before]
            before = int(rng.choice(others))
            pools.append(before)
        if num_pools == 1:
            cuts, pools = [0], [0]
        ends = [*[cut - 1 for cut in cuts[1:]], num_layers - 1]
        ranks = rng.integers(1, 10, len(cuts)).tolist()
        choices = [Choice(*row) for row in zip(cuts, ends, pools, ranks, strict=True)]
        stages = [(c.first, c.last, names[c.pool], c.ranks) for c in choices]
        T, money = page.plan(stages)
        found = estimate(table, choices)
        assert found.seconds_per_batch == pytest.approx(T, rel=1e-12)
        assert found.money == pytest.approx(money, rel=1e-12)
        for choice, stage in zip(choices, stages, strict=True):
            pair = table.pair_index[choice.first, choice.last]
            limit = int(problem.pools.limit[choice.pool])
            fits = page.fits(stage) and choice.ranks <= limit
            assert bool(table.fits(pair, choice.pool, choice.ranks)) == fits
