"""Synthetic logs: seeded, Zipfian, and with something in them to learn."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from data_prep.synthetic import (
    Generator,
    SyntheticSlot,
    ensure_synthetic,
    main,
    planted_weights,
    write_synthetic,
    zipf_ranks,
)
from heterps_hpc.config import SyntheticData
from heterps_hpc.dataset import Batch, ColumnSelection, Dataset, Order, Reader
from heterps_hpc.dataset.show import head, info
from heterps_hpc.errors import UserError

SLOTS = [
    SyntheticSlot("a", 100),
    SyntheticSlot("b", 1000, keys_per_sample=3),
    SyntheticSlot("c", 50, keys_per_sample=2, weighted=True),
]


def read_all(path: Path) -> Batch:
    dataset = Dataset.open(path)
    manifest = dataset.manifest
    want = ColumnSelection(tuple(slot.name for slot in manifest.slots), True, True)
    with Reader(dataset, Order(dataset, manifest.num_rows, shuffle=False), want) as reader:
        return next(reader)


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    ranks = np.argsort(np.argsort(scores))
    positive = labels == 1
    count = positive.sum()
    above = ranks[positive].sum() - count * (count - 1) / 2
    return float(above / (count * (len(labels) - count)))


def test_schema_and_statistics(tmp_path: Path) -> None:
    manifest = write_synthetic(tmp_path / "d", 20_000, SLOTS, num_dense=4, seed=3)
    assert [slot.kind for slot in manifest.slots] == ["one", "many", "many"]
    assert [slot.weighted for slot in manifest.slots] == [False, False, True]
    assert manifest.slot("a").cardinality == 100
    assert manifest.slot("b").mean_keys == pytest.approx(3, rel=0.05)
    assert 0.2 < manifest.label_means[0] < 0.5


def test_rows_of_very_many_keys_are_drawn_in_smaller_blocks() -> None:
    """Else a block of them takes many GB; those of ordinary rows stay what they were."""
    ordinary = Generator([SyntheticSlot("a")] * 26, 13, 0, 0)
    assert ordinary.rows_per_block == 65_536
    assert ordinary.rows_per_shard > 2**20  # the limit of a dataset's own
    many = Generator([SyntheticSlot("a", keys_per_sample=10_000)] * 3, 13, 0, 0)
    assert many.rows_per_block * 30_013 < 2**25
    assert many.rows_per_shard * 30_013 < 2**26


def test_same_seed_same_bits(tmp_path: Path) -> None:
    made = [
        write_synthetic(tmp_path / f"d{place}", 1000, SLOTS, 2, seed, part=part)
        for place, (seed, part) in enumerate([(1, 0), (1, 0), (2, 0), (1, 1)])
    ]
    prints = [manifest.fingerprint() for manifest in made]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.2, 2.0])
def test_ranks_follow_zipfs_law(exponent: float) -> None:
    uniform = (np.arange(400_000) + 0.5) / 400_000
    ranks = zipf_ranks(uniform, 1000, exponent)
    assert ranks.min() == 0
    assert ranks.max() <= 999
    counts = np.bincount(ranks, minlength=1000)
    # far enough from the head the density is a power law
    ratio = counts[100:140].mean() / counts[400:560].mean()
    assert ratio == pytest.approx(4**exponent, rel=0.15)


def test_clicks_can_be_learned(tmp_path: Path) -> None:
    slots = [SyntheticSlot(f"s{number}", 2000) for number in range(10)]
    write_synthetic(tmp_path / "train", 60_000, slots, 5, seed=1)
    write_synthetic(tmp_path / "test", 20_000, slots, 5, seed=1, part=1)
    test = read_all(tmp_path / "test")
    assert test.labels is not None
    assert test.dense is not None
    planted = sum(planted_weights(1, test.slots[slot.name].keys) for slot in slots)
    assert auc(np.asarray(planted), test.labels[:, 0]) > 0.72
    # the click rate of each key in the training rows, added up: learned, not known
    train = read_all(tmp_path / "train")
    assert train.labels is not None
    score = np.zeros(20_000)
    for slot in slots:
        keys, place = np.unique(train.slots[slot.name].keys, return_inverse=True)
        clicks = np.bincount(place, train.labels[:, 0])
        rate = (clicks + 3) / (np.bincount(place) + 9)
        at = np.searchsorted(keys, test.slots[slot.name].keys).clip(0, len(keys) - 1)
        known = keys[at] == test.slots[slot.name].keys
        score += np.where(known, np.log(rate / (1 - rate))[at], 0)
    assert auc(score, test.labels[:, 0]) > 0.68


def test_ensure_makes_what_is_missing_once(tmp_path: Path) -> None:
    spec = SyntheticData(train_rows=500, test_rows=200, num_slots=4, cardinality=50, num_dense=2)
    train, test = tmp_path / "train", tmp_path / "test"
    ensure_synthetic(spec, train, test)
    first = (train / "manifest.json").stat().st_mtime_ns
    assert Dataset.open(train).manifest.num_rows == 500
    assert Dataset.open(test).manifest.num_rows == 200
    with pytest.raises(UserError, match="another `synthetic:` description"):
        ensure_synthetic(spec.model_copy(update={"seed": 9}), train, test)
    (test / "manifest.json").unlink()
    (test / ".shard-00000.h5.partial").touch()  # as a killed run leaves it
    ensure_synthetic(spec, train, test)
    assert (train / "manifest.json").stat().st_mtime_ns == first
    assert Dataset.open(test, "checksums").manifest.num_rows == 200


def test_command_and_what_people_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "d"
    code = main([str(out), "--rows", "300", "--slots", "3", "--cardinality", "20", "--keys", "2"])
    assert code == 0
    assert capsys.readouterr().out.startswith(f"{out}: 300 rows in 1 shard, ")
    page = io.StringIO()
    console = Console(file=page, width=200)
    info(out, "checksums", console)
    head(out, 3, console)
    text = page.getvalue()
    manifest = Dataset.open(out).manifest
    for word in ("300", "3 slots", manifest.fingerprint(), "row 2", "slot s2", "dense d12"):
        assert word in text
    assert f"{manifest.slots[0].cardinality}" in text


def test_impossible_slots_are_refused() -> None:
    with pytest.raises(UserError, match="slot 'x'"):
        SyntheticSlot("x", 0)
