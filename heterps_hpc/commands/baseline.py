"""What one feature alone would reach: the AUC that a trained network has to beat.

Every slot is tried as the only feature: a key's score is its click rate in a sample of the training
data, shrunk towards the mean rate where it was rarely seen; a sample's score is the mean over its
keys. Dense columns are tried as they are. The best of them, on test data, is the baseline.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.dataset.columns import Keys
from heterps_hpc.dataset.read.dataset import ColumnSelection
from heterps_hpc.dataset.read.order import Order
from heterps_hpc.dataset.read.reader import Batch, Reader
from heterps_hpc.errors import UserError
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.metrics.quality import auc

_MAX_KEYS = 2_000_000  # of a sample: about a second
_MAX_ROWS = 100_000
_PRIOR_SHOWS = 20.0  # a key counts as shown so often at the mean rate, before it was shown at all

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """The best single feature."""

    feature: str
    auc: float
    num_train_rows: int
    num_test_rows: int


def record_baseline(run: RunDir) -> None:
    """Find the baseline of a run that was evaluated, once; without its data there is none."""
    if run.baseline.exists() or not _has_auc(run):
        return
    try:
        found = best_feature(Job.parse_saved(run.job))
    except (OSError, UserError):  # the data was moved, the job is of another version
        return
    if found is not None:
        write_atomically(run.baseline, json.dumps(asdict(found), indent=1) + "\n")


def best_feature(job: Job) -> Baseline | None:
    """The feature whose click rate alone ranks the test data best; None without clicks."""
    if job.data.test is None:
        return None
    train, test = (_sample(Dataset.open(path), job) for path in (job.data.train, job.data.test))
    (known, clicks), (asked, truth) = train, test
    aucs = {
        f"slot {name}": auc(_click_rates(known.slots[name], clicks, asked.slots[name]), truth)
        for name in known.slots
    }
    for column, name in enumerate(Dataset.open(job.data.train).manifest.dense_columns):
        before, now = _values(known, column), _values(asked, column)
        aucs[f"column {name}"] = auc(now if auc(before, clicks) >= 0.5 else -now, truth)
    aucs = {name: value for name, value in aucs.items() if np.isfinite(value)}
    if not aucs:
        return None
    best = max(aucs, key=lambda name: aucs[name])
    return Baseline(best, aucs[best], len(clicks), len(truth))


def _sample(dataset: Dataset, job: Job) -> tuple[Batch, Floats]:
    """Rows from all over a data set, and the label that was learned."""
    manifest = dataset.manifest
    keys_per_row = max(sum(slot.mean_keys for slot in manifest.slots), 1.0)
    num_rows = min(manifest.num_rows, _MAX_ROWS, max(int(_MAX_KEYS / keys_per_row), 1))
    slots = tuple(slot.name for slot in manifest.slots)
    selection = ColumnSelection(slots, bool(manifest.dense_columns), labels=True, weight=False)
    with Reader(dataset, Order(dataset, num_rows), selection, num_epochs=1, read_ahead=1) as reader:
        batch = next(reader)
    assert batch.labels is not None
    label = 0 if job.data.label is None else manifest.labels.index(job.data.label)
    return batch, np.clip(batch.labels[:, label], 0.0, 1.0).astype(np.float64)


def _click_rates(known: Keys, clicks: Floats, asked: Keys) -> Floats:
    """A score for every asked sample by the click rates of its keys."""
    mean = float(clicks.mean())
    keys, places = np.unique(known.keys, return_inverse=True)
    shows = np.bincount(places, minlength=len(keys))
    clicked = np.bincount(places, clicks[_rows(known)], minlength=len(keys))
    rates = np.append((clicked + _PRIOR_SHOWS * mean) / (shows + _PRIOR_SHOWS), mean)
    found = np.searchsorted(keys, asked.keys)
    is_known = found < len(keys)
    is_known[is_known] = keys[found[is_known]] == asked.keys[is_known]
    scores = rates[np.where(is_known, found, len(keys))]
    rows = _rows(asked)
    counts = np.bincount(rows, minlength=asked.num_rows)
    sums = np.bincount(rows, scores, minlength=asked.num_rows)
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), mean)
    return means


def _values(batch: Batch, column: int) -> NDArray[np.float32]:
    assert batch.dense is not None
    return np.nan_to_num(batch.dense[:, column])


def _rows(keys: Keys) -> NDArray[np.int64]:
    """The sample of every key."""
    rows = np.arange(keys.num_rows)
    return rows if keys.offsets is None else np.repeat(rows, np.diff(keys.offsets))


def _has_auc(run: RunDir) -> bool:
    try:
        summary = json.loads(run.summary.read_bytes())
        return "auc" in summary["evaluation"]
    except (OSError, ValueError, TypeError, KeyError):
        return False
