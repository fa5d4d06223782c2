"""A table as a plain dict, in float64: slow, obvious, and what the C++ one is held to."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.core import Table, TableConfig, partition_of

Floats = NDArray[np.float64]


@functools.cache
def initial_vector(config: TableConfig, key: int) -> Floats:
    """What a fresh table gives a key; drawn from (seed, name, key), so any table will do."""
    table = Table(
        TableConfig(
            dim=config.dim,
            name=config.name,
            seed=config.seed,
            init=config.init,
            init_scale=config.init_scale,
            dtype="float64",
        )
    )
    out = np.empty((1, config.dim))
    table.pull(np.array([key], np.uint64), out=out)
    vector: Floats = out[0]
    return vector


@dataclass
class Row:
    vector: Floats
    state: Floats
    show: float = 0.0
    click: float = 0.0
    step: int = 0


@dataclass
class Batch:
    keys: list[int]
    offsets: list[int]
    weights: Floats
    mean: bool
    resolved: list[bool] = field(default_factory=list)

    def of_sample(self, sample: int) -> range:
        return range(self.offsets[sample], self.offsets[sample + 1])

    def factor(self, sample: int, key: int) -> float:
        keys = self.of_sample(sample)
        return float(self.weights[key]) / (len(keys) if self.mean else 1)


class DictTable:
    """The semantics of a table, key by key."""

    def __init__(self, config: TableConfig) -> None:
        self.config = config
        self.rows: dict[int, Row] = {}
        self.sightings: dict[int, int] = {}
        self.open: list[Batch] = []
        self.step = 0

    def pull(self, batch: Batch) -> Floats:
        num_samples = len(batch.offsets) - 1
        out = np.zeros((num_samples, self.config.dim))
        for sample in range(num_samples):
            for i in batch.of_sample(sample):
                row = self._resolve(batch.keys[i])
                batch.resolved.append(row is not None)
                if row is not None:
                    out[sample] += batch.factor(sample, i) * row.vector
        self.open.append(batch)
        return out

    def _resolve(self, key: int) -> Row | None:
        admitted = self.sightings.get(key, 0) + 1 >= self.config.admission
        if key not in self.rows and admitted:
            self.rows[key] = Row(
                initial_vector(self.config, key), self._initial_state(), step=self.step
            )
            self.sightings.pop(key, None)
        return self.rows.get(key)

    def _initial_state(self) -> Floats:
        c = self.config
        size = {"sgd": 0, "adagrad_rowwise": 1, "adagrad": c.dim, "adam": 2 * c.dim + 1}
        fill = c.initial_accumulator if c.optimizer.startswith("adagrad") else 0.0
        return np.full(size[c.optimizer], fill)

    def push(self, batches: list[Batch], gradients: list[Floats], step: int) -> None:
        merged: dict[int, Floats] = {}
        shows: dict[int, int] = {}
        self.step = step
        for batch, gradient in zip(batches, gradients, strict=True):
            for sample in range(len(batch.offsets) - 1):
                for i in batch.of_sample(sample):
                    key = batch.keys[i]
                    if batch.resolved[i]:
                        share = batch.factor(sample, i) * gradient[sample]
                        merged[key] = merged.get(key, np.zeros(self.config.dim)) + share
                        shows[key] = shows.get(key, 0) + 1
                    elif key not in self.rows:
                        self.sightings[key] = self.sightings.get(key, 0) + 1
            self.open.remove(batch)
        for key, gradient in merged.items():
            row = self.rows[key]
            self._update(row, gradient)
            kept = self.config.show_decay ** (step - row.step)
            row.show = row.show * kept + shows[key]
            row.step = step
        self._evict(step)

    def _update(self, row: Row, g: Floats) -> None:
        c = self.config
        norm = float(np.sqrt((g * g).sum()))
        if c.clip_norm is not None and norm > c.clip_norm:
            g = g * (c.clip_norm / norm)
        g = g + c.weight_decay * row.vector
        if c.optimizer == "sgd":
            row.vector = row.vector - c.lr * g
        elif c.optimizer == "adagrad_rowwise":
            row.state = row.state + (g * g).mean()
            row.vector = row.vector - c.lr / (np.sqrt(row.state[0]) + c.eps) * g
        elif c.optimizer == "adagrad":
            row.state = row.state + g * g
            row.vector = row.vector - c.lr * g / (np.sqrt(row.state) + c.eps)
        else:
            self._adam(row, g)

    def _adam(self, row: Row, g: Floats) -> None:
        c, d = self.config, self.config.dim
        t = row.state[2 * d] + 1
        m = c.beta1 * row.state[:d] + (1 - c.beta1) * g
        v = c.beta2 * row.state[d : 2 * d] + (1 - c.beta2) * g * g
        row.state = np.concatenate([m, v, [t]])
        root = np.sqrt(v) / np.sqrt(1 - c.beta2**t) + c.eps
        row.vector = row.vector - c.lr / (1 - c.beta1**t) * m / root

    def _evict(self, step: int) -> None:
        c = self.config
        if c.max_age is None:
            return
        pinned = {k for b in self.open for k, hit in zip(b.keys, b.resolved, strict=True) if hit}
        for key in list(self.rows):
            part = int(partition_of(np.array([key], np.uint64), c.num_partitions)[0])
            due = step % c.evict_every == part * c.evict_every // c.num_partitions
            if due and step - self.rows[key].step > c.max_age and key not in pinned:
                del self.rows[key]
