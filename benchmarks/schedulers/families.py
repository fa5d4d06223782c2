"""Families of random planning questions on which simple rules fail, for training and for judging.

A question is a function of (family, purpose, seed): those that the policy is trained on and those
that it is judged by are drawn from different streams, so that none is in both.

Layers and pools are made from a few physical figures: a layer moves bytes (embeddings) or does
arithmetic (fully connected layers) or both, a pool is good at one or the other at its price, and
every (layer, pool) has an efficiency of its own. Families differ in what makes them hard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.local_search import mutations
from heterps_hpc.plan.problem import Floats, LayerArrays, PoolArrays, Problem
from heterps_hpc.plan.scorer import Scorer

PURPOSES = {"train": 1, "judge": 2, "tune": 3}


@dataclass(frozen=True)
class Family:
    """Ranges from which a question is drawn; a pair is (lowest, highest)."""

    name: str
    why: str  # what makes it hard
    layers: tuple[int, int] = (6, 20)
    pools: tuple[int, int] = (2, 8)
    limit: tuple[int, int] = (4, 64)  # ranks of a pool
    floor: tuple[float, float] = (0.75, 0.95)  # of the fastest plan
    embeddings: tuple[float, float] = (0.1, 0.3)  # share of layers that are embeddings
    block: int = 1  # layers of one kind in a row, at most
    efficiency: float = 0.3  # spread of the time of a layer on a pool, log-normal
    link: tuple[float, float] = (1e9, 2e10)  # bytes per second between pools
    node: tuple[int, int] = (1, 1)  # ranks of a node that is billed whole
    tables: float = 0.1  # bytes of tables, relative to the memory of all pools
    serial: tuple[float, float] = (0.0, 0.2)  # 1 − α
    fixed: float = 0.02  # seconds per batch whatever the layers, relative to a mean layer


FAMILIES = {
    family.name: family
    for family in (
        Family("two-pools", "the paper's setting with a tight floor", (6, 20), (2, 2), block=3),
        Family("gpu-kinds", "several kinds of GPU, each best at something", efficiency=0.5),
        Family(
            "mixed",
            "embeddings and dense layers alternate",
            (8, 24),
            (3, 6),
            embeddings=(0.3, 0.6),
            block=3,
            efficiency=0.4,
        ),
        Family("limits", "few ranks in every pool", pools=(4, 8), limit=(2, 8)),
        Family("links", "thin links between pools", pools=(3, 8), link=(2e7, 5e8)),
        Family(
            "memory", "tables that no pool holds alone", pools=(3, 8), limit=(4, 16), tables=0.6
        ),
        Family("nodes", "whole nodes are billed", pools=(2, 8), node=(2, 16)),
        Family(
            "crossing",
            "best pool changes with the batch: fixed and serial parts are large",
            pools=(3, 8),
            serial=(0.0, 0.6),
            fixed=0.5,
        ),
        Family("wide", "20 layers on 64 pools", (20, 20), (64, 64), limit=(2, 32), efficiency=0.5),
        Family("deep", "many layers", (40, 100), (4, 8), limit=(4, 32), block=8),
    )
}


def questions(name: str, purpose: str, num: int) -> Iterator[Problem]:
    """The first questions of a family for a purpose."""
    for seed in range(num):
        yield question(FAMILIES[name], purpose, seed)


def question(family: Family, purpose: str, seed: int, rounds: int = 12) -> Problem:
    """One question of a family; it always has a plan."""
    name = int.from_bytes(family.name.encode()[:7], "big")
    for attempt in range(100):
        rng = np.random.default_rng([PURPOSES[purpose], name, seed, attempt])
        problem = draw(family, rng)
        fastest = fastest_seconds(problem, rng, rounds)
        if math.isfinite(fastest):
            share = float(rng.uniform(*family.floor))
            return problem.with_floor(share * problem.batch_size / fastest)
    raise AssertionError(f"no question of family {family.name!r} with seed {seed} has a plan")


def draw(family: Family, rng: np.random.Generator) -> Problem:
    """A question without a floor."""
    num_layers = int(rng.integers(family.layers[0], family.layers[1] + 1))
    num_pools = _log_int(rng, family.pools)
    embeds = _embeddings(family, rng, num_layers)
    pools, arithmetic, bandwidth = _pools(family, rng, num_pools)
    layers = _layers(family, rng, embeds, pools, arithmetic, bandwidth)
    mean = float(layers.OCT.mean())
    pools = replace(pools, fixed_seconds=family.fixed * mean * rng.uniform(0, 1, num_pools))
    return Problem(
        pools=pools,
        layers=layers,
        batch_size=4096,
        micro_batches=int(rng.choice([1, 4, 8, 8, 16, 32])),
        staleness=int(rng.integers(0, 2)),
        num_batches=1e9 / 4096,
        floor=0.0,
    )


def _embeddings(family: Family, rng: np.random.Generator, num: int) -> np.ndarray:
    """Which layers are embeddings: the first, and blocks of others."""
    share = rng.uniform(*family.embeddings)
    kinds: list[bool] = [True]
    while len(kinds) < num:
        kinds += [bool(rng.random() < share)] * int(rng.integers(1, family.block + 1))
    return np.array(kinds[:num])


def _pools(family: Family, rng: np.random.Generator, num: int) -> tuple[PoolArrays, Floats, Floats]:
    """CPU and GPU pools; arithmetic and memory speed of a rank relative to a CPU core's."""
    is_cpu = rng.random(num) < 0.4
    is_cpu[0], is_cpu[1] = True, False
    order = rng.permutation(num)
    is_cpu = is_cpu[order]
    arithmetic = np.where(is_cpu, rng.lognormal(0, 0.3, num), rng.lognormal(np.log(60), 0.6, num))
    bandwidth = np.where(is_cpu, rng.lognormal(0, 0.3, num), rng.lognormal(np.log(12), 0.4, num))
    price = 0.04 * np.where(is_cpu, 1.0, 40 * (arithmetic / 60) ** 0.7) * rng.lognormal(0, 0.3, num)
    limit = np.array([_log_int(rng, family.limit) for _ in range(num)])
    limit = np.where(is_cpu, limit * int(rng.choice([1, 2, 4])), limit)
    node = np.array([_log_int(rng, family.node) for _ in range(num)])
    limit = -(-limit // node) * node
    link = np.exp(rng.uniform(*np.log(family.link), num))
    inner = link * rng.uniform(1, 10, num)
    talks = rng.random() < 0.5  # whether messages cost processor time
    return (
        PoolArrays(
            names=tuple(f"{'cpu' if cpu else 'gpu'}{i}" for i, cpu in enumerate(is_cpu)),
            price=price * node,
            ranks_per_unit=node,
            limit=limit,
            memory=np.where(is_cpu, 4e9, 3e10) * rng.uniform(0.5, 2, num),
            device_memory=np.where(is_cpu, np.inf, 1.6e10),
            is_cpu=is_cpu,
            fixed_seconds=np.zeros(num),
            overlap=rng.choice([0.0, 0.5, 1.0], num),
            full_node_ranks=rng.integers(1, 9, num),
            alone=rng.uniform(0.7, 1.0, num),
            uplink_latency=rng.uniform(1e-6, 1e-4, num),
            uplink_seconds_per_byte=1 / link,
            inner_seconds_per_byte=1 / inner,
            reduce_latency=rng.uniform(1e-6, 1e-4, num),
            reduce_seconds_per_byte=1 / inner,
            message_seconds_per_byte=talks / link * rng.uniform(0.05, 0.5, num),
            message_seconds=talks * rng.uniform(1e-6, 1e-4, num),
            cut_seconds_per_byte=talks / link * rng.uniform(0.05, 0.5, num),
            cut_message_seconds=talks * rng.uniform(1e-6, 1e-4, num),
            tables_fixed_seconds=np.zeros(num),
            estimated=np.zeros(num, dtype=np.bool_),
        ),
        arithmetic,
        bandwidth,
    )


def _layers(
    family: Family,
    rng: np.random.Generator,
    embeds: np.ndarray,
    pools: PoolArrays,
    arithmetic: Floats,
    bandwidth: Floats,
) -> LayerArrays:
    num, num_pools = len(embeds), len(arithmetic)
    shape = (num, num_pools)
    work = rng.lognormal(0, 0.8, num) * np.where(embeds, 0.02, 1.0)  # core-seconds of arithmetic
    moved = rng.lognormal(0, 0.8, num) * np.where(embeds, 0.5, 0.05)  # of moving bytes
    seconds = work[:, None] / arithmetic + moved[:, None] / bandwidth
    seconds = seconds * rng.lognormal(0, family.efficiency, shape)
    width = rng.choice([64, 128, 256, 512, 1024], num)
    memory = float((pools.memory * pools.limit).sum())
    part = rng.dirichlet(np.ones(int(embeds.sum())))
    table_bytes = np.zeros(num)
    table_bytes[embeds] = part * memory * family.tables * rng.uniform(0.5, 1.5)
    tensors = []
    for layer in range(num - 1):
        readers = {layer + 1}
        if layer + 2 < num and rng.random() < 0.15:
            readers.add(int(rng.integers(layer + 2, num)))
        tensors.append((layer, tuple(sorted(readers)), float(4096 * 4 * width[layer])))
    return LayerArrays(
        names=tuple(f"layer{i}" for i in range(num)),
        kinds=tuple("embedding" if e else "fc" for e in embeds),
        is_embedding=embeds,
        OCT=seconds,
        alpha=1 - np.clip(rng.uniform(*family.serial, shape) * rng.random(shape), 0, 1),
        ODT=0.2 * seconds * rng.random(shape),
        beta=rng.uniform(0.7, 1.0, shape),
        weight_bytes=np.where(embeds, 0.0, 4.0 * width * rng.choice([64, 256, 1024], num)),
        table_bytes=table_bytes,
        activation_bytes=8.0 * 4096 * width,
        input_bytes=4.0 * width,
        tensors=tuple(tensors),
    )


def fastest_seconds(problem: Problem, rng: np.random.Generator, rounds: int = 12) -> float:
    """Seconds per batch of a very fast plan: local search from the fastest pool of each layer."""
    scorer = Scorer(StageTable(problem), seconds_only=True)
    pools = np.arange(problem.num_pools)
    best = np.repeat(pools[:, None], problem.num_layers, axis=1)
    value = np.inf
    for _ in range(rounds):
        tries = np.concatenate([best, mutations(best, 200, problem.num_pools, rng)])
        scores = scorer.score(tries)
        order = np.argsort(np.where(scores.valid, scores.money, 1e3 * scores.money))[:8]
        best = tries[order]
        if scores.valid[order[0]]:
            value = min(value, float(scores.money[order[0]]))
    return value


def _log_int(rng: np.random.Generator, ends: tuple[int, int]) -> int:
    """A number between both ends, small ones as likely as large ones by ratio."""
    low, high = np.log(ends[0]), np.log(ends[1] + 1)
    return int(min(ends[1], np.exp(rng.uniform(low, high)) // 1)) or 1
