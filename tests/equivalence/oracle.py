"""The oracle: what a job should learn, by one process of plain torch and none of the runtime.

Deliberately plain: a dictionary of rows per table, autograd over the whole batch, a queue of
late pushes. It shares with the runtime only what is published as a function of its arguments:
the order of rows, the negatives, the first value of a row or of a dense parameter, and the pure
functions for learning rates and metrics, which have tests of their own.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps_hpc.config import Job, SparseOptimizer
from heterps_hpc.core import Table, TableConfig
from heterps_hpc.dataset import Batch, ColumnSelection, Dataset, Keys, Order, Reader
from heterps_hpc.model import LENGTH_PREFIX, Layer, Lookup, Model, TableSpec
from heterps_hpc.models.dropout import samples
from heterps_hpc.models.layers import make_module
from heterps_hpc.negatives import distinct_keys, draw_negatives
from heterps_hpc.runtime.lr_schedule import factor
from heterps_hpc.runtime.metrics.quality import auc, log_loss, normalised_entropy
from tests.half_precision import by_chance, to_nearest

Row = NDArray[Any]
Pulled = dict[str, tuple[NDArray[np.uint64], Tensor]]  # by table: distinct keys, their rows


@dataclass
class Learned:
    """What is compared: losses by step, dense tensors, rows of every table sorted by key, and
    the quality on a test set at the end."""

    losses: list[float]
    dense: dict[str, NDArray[Any]]
    rows: dict[str, tuple[NDArray[np.uint64], NDArray[Any]]]
    evaluation: dict[str, float]


def first_vectors(spec: TableSpec, seed: int, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """What a new row starts from: the one thing of a table that the oracle takes from the core."""
    config = TableConfig(
        dim=spec.dim,
        name=spec.name,
        seed=seed,
        init_scale=spec.init_scale,
        dtype="float64",
    )
    vectors = np.zeros((len(keys), spec.dim))
    Table(config).pull(keys, out=vectors)
    return vectors


class OracleTable:
    """Key → vector and optimizer state, in a dictionary."""

    def __init__(self, spec: TableSpec, job: Job) -> None:
        self.dtype = np.float64 if job.train.precision == "float64" else np.float32
        self.spec, self.seed = spec, job.train.seed
        self.sparse = job.train.sparse
        self.precision = job.train.tables.precision
        self.vectors: dict[int, Row] = {}
        self.states: dict[int, dict[str, Any]] = {}

    def pull(self, keys: NDArray[np.uint64], create: bool = True) -> NDArray[Any]:
        """The vectors of distinct keys; a new key gets its first vector, or reads as zeros."""
        nothing = np.zeros(self.spec.dim, self.dtype)
        new = np.array([key for key in keys.tolist() if key not in self.vectors], np.uint64)
        if len(new) and create:
            vectors = first_vectors(self.spec, self.seed, new).astype(self.dtype)
            if self.precision is not None:
                vectors = to_nearest(vectors, self.precision)
            for key, vector in zip(new.tolist(), vectors, strict=True):
                self.vectors[key] = vector
                self.states[key] = {}
        if len(keys) == 0:
            return np.zeros((0, self.spec.dim), self.dtype)
        return np.stack([self.vectors.get(key, nothing) for key in keys.tolist()])

    def push(
        self, keys: NDArray[np.uint64], gradients: NDArray[Any], rate: float, number: int
    ) -> None:
        """One optimizer step for each of the distinct keys: clip, decay, update, round."""
        for key, gradient in zip(keys.tolist(), gradients, strict=True):
            vector = self.vectors[key]
            if self.sparse.clip_norm is not None:
                norm = float(np.sqrt((gradient * gradient).sum()))
                if norm > self.sparse.clip_norm:
                    gradient = gradient * self.dtype(self.sparse.clip_norm / norm)
            gradient = gradient + self.dtype(self.sparse.weight_decay) * vector
            step = row_step(self.sparse, gradient, self.states[key])
            self.vectors[key] = (vector - self.dtype(rate) * step).astype(self.dtype)
        if self.precision is not None and len(keys):
            exact = np.stack([self.vectors[key] for key in keys.tolist()])
            rows = by_chance(exact, keys, self.spec.name, self.seed, number, self.precision)
            self.vectors.update(zip(keys.tolist(), rows, strict=True))

    def sorted_rows(self) -> tuple[NDArray[np.uint64], NDArray[Any]]:
        """All keys in order with their vectors."""
        keys = np.array(sorted(self.vectors), np.uint64)
        return keys, self.pull(keys)


def row_step(sparse: SparseOptimizer, gradient: Row, state: dict[str, Any]) -> Row:
    """What a row moves by at a rate of 1, as torch.optim does it for a dense tensor."""
    if sparse.optimizer == "sgd":
        return gradient
    if sparse.optimizer == "adagrad":
        state["sum"] = state.get("sum", 0) + gradient * gradient
        return gradient / (np.sqrt(state["sum"]) + gradient.dtype.type(sparse.eps))
    if sparse.optimizer == "adagrad_rowwise":
        state["sum"] = state.get("sum", 0) + (gradient * gradient).mean()
        return gradient / (np.sqrt(state["sum"]) + gradient.dtype.type(sparse.eps))
    beta1, beta2 = (gradient.dtype.type(beta) for beta in sparse.betas)
    state["t"] = state.get("t", 0) + 1
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * gradient
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * gradient * gradient
    mean = state["m"] / gradient.dtype.type(1 - sparse.betas[0] ** state["t"])
    root = np.sqrt(state["v"] / gradient.dtype.type(1 - sparse.betas[1] ** state["t"]))
    return mean / (root + gradient.dtype.type(sparse.eps))


class Oracle:
    """Trains a job in one process."""

    def __init__(self, job: Job, model: Model, dataset: Dataset) -> None:
        self.job, self.model, self.dataset = job, model, dataset
        train = job.train
        self.dtype = torch.float64 if train.precision == "float64" else torch.float32
        self.tables = {spec.name: OracleTable(spec, job) for spec in model.tables}
        self.modules = {
            layer.name: make_module(layer, train.seed, self.dtype)
            for layer in model.layers
            if not layer.is_embedding
        }
        self.parameters = {
            f"{layer}.{name}": parameter
            for layer, module in self.modules.items()
            for name, parameter in module.named_parameters()
        }
        self.optimizer = dense_optimizer(job, list(self.parameters.values()))
        self.candidates = {
            slot.name: distinct_keys(dataset.key_sample(slot.source)) for slot in model.negatives
        }

    def train(self) -> Learned:
        """All steps of the job; a push waits for `staleness` more pulls."""
        waiting: deque[Callable[[], None]] = deque()
        losses = []
        total = num_steps(self.job, self.dataset)
        for step, batch in enumerate(self._batches(total)):
            while len(waiting) > self.job.train.staleness:
                waiting.popleft()()
            loss, push = self._step(batch, step, total)
            losses.append(loss)
            waiting.append(push)
        while waiting:
            waiting.popleft()()
        self._see_what_comes_next(total)
        dense = {name: value.detach().numpy().copy() for name, value in self.parameters.items()}
        rows = {name: table.sorted_rows() for name, table in self.tables.items()}
        return Learned(losses, dense, rows, self.evaluate())

    def _see_what_comes_next(self, total: int) -> None:
        """A run that saves its end keeps the new rows of the batches that it pulled ahead."""
        ahead = self.job.train.staleness if self.job.checkpoint.at_end else 0
        for batch in itertools.islice(self._batches(total + ahead), total, None):
            for name in self.tables:
                self._pull(name, batch, create=True)

    def evaluate(self) -> dict[str, float]:
        """Quality on the test set, all of it as one batch; nothing is created, nothing dropped."""
        if self.job.data.test is None:
            return {}
        test = Dataset.open(self.job.data.test)
        want = ColumnSelection(slots=tuple(self.model.data_slots()), dense=True, labels=True)
        order = Order(test, test.manifest.num_rows, shuffle=False)
        with Reader(test, order, want) as reader:
            batch = next(reader)
        for module in self.modules.values():
            module.eval()
        with torch.no_grad():
            score = self._forward(batch, create=False)[0]["score"].double().numpy()
        assert batch.labels is not None
        label = batch.labels[:, 0]
        found = {"samples": float(len(score)), "auc": auc(score, label)}
        if self.model.score_is_logit:
            found["log_loss"] = log_loss(score, label)
            found["normalised_entropy"] = normalised_entropy(score, label)
        return found

    def _batches(self, total: int) -> Iterator[Batch]:
        data, train = self.job.data, self.job.train
        order = Order(self.dataset, train.batch_size, train.seed, data.shuffle, data.drop_last)
        manifest = self.dataset.manifest
        want = ColumnSelection(
            slots=tuple(self.model.data_slots()),
            dense=bool(manifest.dense_columns),
            labels=True,
            weight=manifest.has_weight,
        )
        with Reader(self.dataset, order, want) as reader:
            for _ in range(total):
                yield next(reader)

    def _step(self, batch: Batch, step: int, total: int) -> tuple[float, Callable[[], None]]:
        """One batch: pull, forward, backward, dense step; the push is left to the caller."""
        train = self.job.train
        tensors, pulled = self._forward(batch)
        weight = tensors.get("weight", torch.ones(batch.num_rows, dtype=self.dtype))
        loss = (tensors["loss"] * weight).sum() / (weight.sum().item() or 1.0)
        if train.on_nan == "skip" and not torch.isfinite(loss):
            return loss.item(), lambda: None
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        if train.dense.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), train.dense.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = train.dense.lr * factor(train.dense.schedule, step, total)
        self.optimizer.step()
        rate = train.sparse.lr * factor(train.sparse.schedule, step, total)

        def push() -> None:
            for name, (keys, rows) in pulled.items():
                gradients = np.zeros(rows.shape) if rows.grad is None else rows.grad.numpy()
                table = self.tables[name]
                table.push(keys, gradients.astype(table.dtype), rate, step)

        return loss.item(), push

    def _forward(self, batch: Batch, create: bool = True) -> tuple[dict[str, Tensor], Pulled]:
        """All tensors of a batch, and the rows that they came from."""
        pulled = {name: self._pull(name, batch, create) for name in self.tables}
        tensors = self._data_tensors(batch)
        ids = torch.from_numpy(batch.sample_ids)
        with samples(self.job.train.seed, batch.epoch, ids):
            for layer in self.model.layers:
                self._run(layer, tensors, batch, pulled)
        return tensors, pulled

    def _pull(self, table: str, batch: Batch, create: bool) -> tuple[NDArray[np.uint64], Tensor]:
        """The distinct keys that a batch reads in a table, and their rows as a leaf tensor."""
        seen = [
            self._keys(lookup, batch)[0] for lookup in self.model.lookups if lookup.table == table
        ]
        keys = np.unique(np.concatenate(seen))
        return keys, torch.from_numpy(self.tables[table].pull(keys, create)).requires_grad_()

    def _keys(self, lookup: Lookup, batch: Batch) -> tuple[NDArray[np.uint64], ...]:
        """Flat (keys, sample, place within the sample, weight) of what a look-up reads."""
        negative = self.model.negative(lookup.slot)
        if negative is None:
            column = batch.slots[lookup.slot]
        else:
            drawn = draw_negatives(
                self.candidates[negative.name],
                negative.num_keys,
                self.job.train.seed,
                batch.epoch,
                batch.sample_ids,
                negative.name,
            )
            starts = np.arange(batch.num_rows + 1, dtype=np.int64) * negative.num_keys
            column = Keys(drawn.reshape(-1), starts)
        offsets = column.offsets
        if offsets is None:
            offsets = np.arange(batch.num_rows + 1, dtype=np.int64)
        sample = np.repeat(np.arange(batch.num_rows), np.diff(offsets))
        place = np.arange(len(column.keys)) - offsets[sample]
        weight = np.ones(len(sample)) if column.weights is None else column.weights
        taken = place < (lookup.max_keys if lookup.pooling == "none" else np.inf)
        return tuple(part[taken] for part in (column.keys, sample, place, weight))

    def _run(self, layer: Layer, tensors: dict[str, Tensor], batch: Batch, pulled: Pulled) -> None:
        if layer.is_embedding:
            for name in layer.writes:
                parts = [
                    self._look_up(lookup, batch, *pulled[lookup.table])
                    for lookup in layer.lookups
                    if lookup.writes == name
                ]
                tensors[name] = torch.cat(parts, dim=1)
            return
        outputs = self.modules[layer.name](*(tensors[name] for name in layer.reads))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        tensors.update(zip(layer.writes, outputs, strict=True))

    def _look_up(
        self, lookup: Lookup, batch: Batch, keys: NDArray[np.uint64], rows: Tensor
    ) -> Tensor:
        wanted, sample, place, weight = self._keys(lookup, batch)
        dim = rows.shape[1]
        vectors = rows[torch.from_numpy(np.searchsorted(keys, wanted))]
        vectors = vectors * torch.from_numpy(np.asarray(weight)).to(self.dtype)[:, None]
        per_row = lookup.max_keys if lookup.pooling == "none" else 1
        target = sample * per_row + (place if lookup.pooling == "none" else 0)
        pooled = torch.zeros(batch.num_rows * per_row, dim, dtype=self.dtype)
        pooled = pooled.index_add(0, torch.from_numpy(target), vectors)
        if lookup.pooling == "mean":
            counts = torch.from_numpy(np.bincount(sample, minlength=batch.num_rows))
            pooled = pooled / counts.clamp(min=1).to(self.dtype)[:, None]
        return pooled.reshape(batch.num_rows, per_row * dim)

    def _data_tensors(self, batch: Batch) -> dict[str, Tensor]:
        tensors = {}
        if batch.dense is not None:
            tensors["dense"] = torch.from_numpy(batch.dense).to(self.dtype)
        assert batch.labels is not None
        tensors["label"] = torch.from_numpy(batch.labels[:, 0].copy()).to(self.dtype)
        if batch.weight is not None:
            tensors["weight"] = torch.from_numpy(batch.weight).to(self.dtype)
        for name, column in batch.slots.items():
            lengths = np.ones(batch.num_rows)
            if column.offsets is not None:
                lengths = np.diff(column.offsets)
            tensors[LENGTH_PREFIX + name] = torch.from_numpy(lengths).to(self.dtype)
        return tensors


def num_steps(job: Job, dataset: Dataset) -> int:
    """Steps of the whole job: as given, else whole epochs."""
    data, train = job.data, job.train
    order = Order(dataset, train.batch_size, train.seed, data.shuffle, data.drop_last)
    return train.steps or order.num_batches * (train.epochs or 1)


def dense_optimizer(job: Job, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """torch's own optimizer, as the job names it."""
    spec = job.train.dense
    if spec.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay
        )
    if spec.optimizer == "adagrad":
        return torch.optim.Adagrad(
            parameters, spec.lr, eps=spec.eps, weight_decay=spec.weight_decay
        )
    kind = torch.optim.Adam if spec.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)
