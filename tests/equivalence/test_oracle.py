"""The oracle itself: against nn.EmbeddingBag and torch.optim, and its own notion of staleness."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from heterps_hpc.config import Job, SparseOptimizer
from heterps_hpc.dataset import ColumnSelection, Dataset, Order, Reader
from heterps_hpc.models.layers import make_module
from tests.equivalence.cases import Case, make_job, make_model
from tests.equivalence.click_log import write_click_logs
from tests.equivalence.compare import differences
from tests.equivalence.oracle import Learned, Oracle, first_vectors, row_step
from tests.equivalence.suite import AXES, full_product, pairwise


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("click_logs")
    write_click_logs(path)
    return path


def learn(case: Case, data: Path, **changes: object) -> Learned:
    job = make_job(case, data)
    job = job.model_copy(update={"train": job.train.model_copy(update=changes)})
    dataset = Dataset.open(job.data.train)
    return Oracle(job, make_model(job, dataset.manifest), dataset).train()


def plain_torch(job: Job) -> tuple[list[float], dict[str, torch.Tensor]]:
    """ctrdnn as anyone would write it: nn.EmbeddingBag and two optimizers."""
    dataset = Dataset.open(job.data.train)
    model = make_model(job, dataset.manifest)
    slots = [lookup.slot for lookup in model.lookups]
    order = Order(dataset, job.train.batch_size, job.train.seed)
    want = ColumnSelection(slots=tuple(slots), dense=True, labels=True)
    with Reader(dataset, order, want) as reader:
        batches = [next(reader) for _ in range(job.train.steps or 0)]
    vocabulary, bags = {}, {}
    for slot in slots:
        keys = vocabulary[slot] = np.unique(np.concatenate([b.slots[slot].keys for b in batches]))
        first = first_vectors(model.table(slot), job.train.seed, keys)
        bags[slot] = torch.nn.EmbeddingBag.from_pretrained(
            torch.from_numpy(first),
            freeze=False,
            mode="sum",
            include_last_offset=True,
        )
    modules = [
        make_module(layer, job.train.seed, torch.float64)
        for layer in model.layers
        if layer.make is not None
    ]
    tables = torch.optim.Adagrad([bag.weight for bag in bags.values()], 0.05, eps=1e-4)
    dense = torch.optim.SGD([p for module in modules for p in module.parameters()], 0.1)
    losses = []
    for batch in batches:
        pooled = []
        for slot in slots:
            column = batch.slots[slot]
            offsets = column.offsets
            if offsets is None:
                offsets = np.arange(batch.num_rows + 1)
            weights = None
            if column.weights is not None:
                weights = torch.from_numpy(column.weights).double()
            places = torch.from_numpy(np.searchsorted(vocabulary[slot], column.keys))
            pooled.append(bags[slot](places, torch.from_numpy(offsets), weights))
        assert batch.dense is not None
        assert batch.labels is not None
        values = torch.cat([*pooled, torch.from_numpy(batch.dense).double()], dim=1)
        for module in modules[:-1]:
            values = module(values)
        loss = modules[-1](values, torch.from_numpy(batch.labels[:, 0])).mean()
        tables.zero_grad()
        dense.zero_grad()
        loss.backward()
        tables.step()
        dense.step()
        losses.append(loss.item())
    return losses, {slot: bag.weight.detach() for slot, bag in bags.items()}


def test_without_staleness_it_is_plain_torch(data: Path) -> None:
    case = Case("ctrdnn", "1", 1, 0, "float64", "plain")
    learned = learn(case, data)
    losses, tables = plain_torch(make_job(case, data))
    np.testing.assert_allclose(learned.losses, losses, rtol=1e-12)
    for slot, weights in tables.items():
        np.testing.assert_allclose(learned.rows[slot][1], weights.numpy(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_rows_learn_as_torch_optim_would_teach_them(optimizer: str) -> None:
    rng = np.random.default_rng(0)
    spec = SparseOptimizer(optimizer=optimizer, lr=0.1, eps=1e-6)  # type: ignore[arg-type]
    row = rng.standard_normal(5)
    parameter = torch.nn.Parameter(torch.from_numpy(row.copy()))
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    options = {} if optimizer == "sgd" else {"eps": 1e-6}
    theirs = kind[optimizer]([parameter], lr=0.1, **options)  # type: ignore[operator]
    state: dict[str, object] = {}
    for _ in range(6):
        gradient = rng.standard_normal(5)
        row = row - 0.1 * row_step(spec, gradient, state)
        parameter.grad = torch.from_numpy(gradient)
        theirs.step()
    np.testing.assert_allclose(row, parameter.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("staleness", [1, 2])
def test_staleness_shows_first_after_the_batches_it_spares(data: Path, staleness: int) -> None:
    """The pulls of batches 0 .. s see no push: with other table rates their losses are the same."""
    case = Case("ctrdnn", "1", 1, staleness, "float64", "plain")
    slow = learn(case, data)
    fast = learn(case, data, sparse=SparseOptimizer(optimizer="adagrad", lr=0.5, eps=1e-4))
    assert slow.losses[: staleness + 1] == fast.losses[: staleness + 1]
    assert slow.losses[staleness + 1] != fast.losses[staleness + 1]


def test_the_comparison_notices_one_missed_push(data: Path) -> None:
    """A suite that cannot fail proves nothing: s = 1 must not pass for s = 0, in any precision."""
    for precision in ("float64", "float32"):
        results = [
            learn(Case("ctrdnn", "1", 1, staleness, precision, "plain"), data)
            for staleness in (0, 1)
        ]
        found = differences(results[1], results[0], precision)
        assert any(line.startswith("losses") for line in found)
        assert any(line.startswith("table") for line in found)
        assert any(line.startswith("dense") for line in found)


def test_pairwise_cases_leave_no_pair_out() -> None:
    chosen, everything = pairwise(), [Case(*values) for values in product(*AXES.values())]
    assert len(chosen) < len(everything) / 20

    def pairs(cases: list[Case]) -> set[tuple[object, ...]]:
        found: set[tuple[object, ...]] = set()
        for case in cases:
            items = list(case.to_dict().items())
            found |= {(a, b) for i, a in enumerate(items) for b in items[:i]}
        return found

    assert pairs(chosen) == pairs(full_product()) == pairs(everything)
