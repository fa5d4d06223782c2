"""Negatives: the same keys on every rank that computes them, and fair ones."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_hpc.counter_rng import splitmix64
from heterps_hpc.errors import UserError
from heterps_hpc.negatives import distinct_keys, draw_negatives

KEYS = np.arange(100, 150, dtype=np.uint64)


def test_a_sample_draws_the_same_wherever_it_is() -> None:
    ids = np.array([3, 10**9, 7, 2**40])
    whole = draw_negatives(KEYS, 4, seed=1, epoch=2, sample_ids=ids)
    assert whole.shape == (4, 4)
    assert whole.dtype == np.uint64
    for row, sample in enumerate(ids):
        alone = draw_negatives(KEYS, 4, 1, 2, np.array([sample]))
        assert np.array_equal(alone[0], whole[row])


def test_fewer_draws_are_the_first_of_more() -> None:
    ids = np.arange(10)
    more = draw_negatives(KEYS, 5, 1, 0, ids)
    assert np.array_equal(more[:, :2], draw_negatives(KEYS, 2, 1, 0, ids))


def test_seed_epoch_and_slot_draw_apart() -> None:
    ids = np.arange(100)
    drawn = [
        draw_negatives(KEYS, 3, 1, 0, ids, "a"),
        draw_negatives(KEYS, 3, 2, 0, ids, "a"),
        draw_negatives(KEYS, 3, 1, 1, ids, "a"),
        draw_negatives(KEYS, 3, 1, 0, ids, "b"),
    ]
    for left in range(4):
        for right in range(left):
            same = (drawn[left] == drawn[right]).mean()
            assert same < 0.1  # one in fifty by chance


def test_draws_are_uniform_and_independent() -> None:
    drawn = draw_negatives(KEYS, 8, 9, 0, np.arange(50_000)) - 100
    for column in drawn.T:
        counts = np.bincount(column.astype(np.int64), minlength=50)
        chi_square = ((counts - 1000) ** 2 / 1000).sum()
        assert chi_square < 49 + 6 * np.sqrt(98)
    centred = drawn.astype(np.float64) - drawn.mean(axis=0)
    correlation = np.corrcoef(centred.T) - np.eye(8)
    assert np.abs(correlation).max() < 0.03


def test_the_published_keys_do_not_change() -> None:
    """A new release that drew others would break the resuming of old runs."""
    drawn = draw_negatives(KEYS, 3, 1, 2, np.array([0, 1, 12345]), "negative")
    assert drawn.tolist() == [[147, 123, 109], [118, 122, 116], [148, 113, 142]]


def test_mixing_agrees_with_the_published_splitmix64() -> None:
    """First outputs of SplitMix64 with state 0 (Vigna's reference code)."""
    states = np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert splitmix64(states).tolist() == expected


def test_candidates_are_distinct_and_sorted() -> None:
    assert distinct_keys(np.array([9, 1, 9, 2**63], np.uint64)).tolist() == [1, 9, 2**63]


def test_no_samples_and_no_candidates() -> None:
    assert draw_negatives(KEYS, 3, 1, 0, np.arange(0)).shape == (0, 3)
    with pytest.raises(UserError, match="empty key sample"):
        draw_negatives(np.empty(0, np.uint64), 3, 1, 0, np.arange(2), "negative")
