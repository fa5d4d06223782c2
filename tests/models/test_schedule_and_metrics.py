"""Learning-rate factors and the measures of a model, against other people's definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_hpc.config import LearningRate
from heterps_hpc.runtime.lr_schedule import factor
from heterps_hpc.runtime.metrics.quality import auc, log_loss, normalised_entropy


def test_constant_with_warm_up() -> None:
    schedule = LearningRate(warmup_steps=4)
    assert [factor(schedule, step, 10) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_cosine_falls_to_its_end_and_stays() -> None:
    schedule = LearningRate(kind="cosine", warmup_steps=2, final_factor=0.1)
    factors = [factor(schedule, step, 13) for step in range(20)]
    assert factors[1] == factors[2] == 1
    assert factors[7] == pytest.approx(0.55)
    assert factors[12] == pytest.approx(0.1)
    assert factors[19] == pytest.approx(0.1)
    assert factors[2:] == sorted(factors[2:], reverse=True)


def test_cosine_may_have_a_length_of_its_own() -> None:
    schedule = LearningRate(kind="cosine", total_steps=5)
    assert factor(schedule, 4, 1000) == pytest.approx(0)
    assert factor(schedule, 2, 1000) == pytest.approx(0.5)


def test_steps() -> None:
    schedule = LearningRate(kind="step", step_every=3, step_factor=0.5, warmup_steps=1)
    assert [factor(schedule, step, 9) for step in range(8)] == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25]


@given(
    kind=st.sampled_from(["constant", "cosine", "step"]),
    warmup=st.integers(0, 20),
    step=st.integers(0, 200),
    total=st.integers(1, 100),
)
def test_factors_stay_between_0_and_1(kind: str, warmup: int, step: int, total: int) -> None:
    schedule = LearningRate(kind=kind, warmup_steps=warmup, step_every=7)  # type: ignore[arg-type]
    assert 0 <= factor(schedule, step, total) <= 1


def slow_auc(scores: list[float], labels: list[int], weights: list[float]) -> float:
    """The definition: over all pairs of a click and a non-click."""
    won = total = 0.0
    for score, label, weight in zip(scores, labels, weights, strict=True):
        for other, other_label, other_weight in zip(scores, labels, weights, strict=True):
            if label == 1 and other_label == 0:
                total += weight * other_weight
                won += weight * other_weight * (1.0 if score > other else 0.5 * (score == other))
    return won / total if total else math.nan


samples_of = st.lists(
    st.tuples(st.sampled_from([-1.5, 0.0, 0.25, 0.3, 2.0]), st.integers(0, 1), st.floats(0.01, 5)),
    max_size=25,
)


@given(samples_of)
def test_auc_counts_pairs_with_ties_half(rows: list[tuple[float, int, float]]) -> None:
    scores, labels, weights = ([row[i] for row in rows] for i in range(3))
    expected = slow_auc(scores, labels, weights)
    assert auc(scores, labels, weights) == pytest.approx(expected, nan_ok=True)
    even = slow_auc(scores, labels, [1.0] * len(rows))
    assert auc(scores, labels) == pytest.approx(even, nan_ok=True)


def test_auc_of_many_random_scores_is_a_half() -> None:
    rng = np.random.default_rng(0)
    assert auc(rng.random(100_000), rng.random(100_000) < 0.3) == pytest.approx(0.5, abs=0.01)


def test_auc_ignores_the_order_of_rows() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.integers(0, 9, 500), rng.integers(0, 2, 500)
    order = rng.permutation(500)
    assert auc(scores, labels) == auc(scores[order], labels[order])


def test_log_loss_against_its_definition() -> None:
    logits, labels = np.array([0.3, -2.0, 5.0]), np.array([1, 0, 0])
    chance = 1 / (1 + np.exp(-logits))
    expected = -np.mean(labels * np.log(chance) + (1 - labels) * np.log(1 - chance))
    assert log_loss(logits, labels) == pytest.approx(expected)
    assert log_loss(logits, labels, [0, 0, 3]) == pytest.approx(5.0 + np.log1p(np.exp(-5.0)))


def test_log_loss_of_huge_logits_is_finite() -> None:
    assert log_loss([1e4, -1e4], [0, 1]) == pytest.approx(1e4)


def test_normalised_entropy_of_the_mean_label_is_one() -> None:
    labels = np.array([1, 0, 0, 1, 0])
    weights = np.array([1, 2, 1, 0.5, 0.5])
    rate = (labels * weights).sum() / weights.sum()
    logits = np.full(5, np.log(rate / (1 - rate)))
    assert normalised_entropy(logits, labels, weights) == pytest.approx(1.0)


def test_what_has_no_value_is_nan() -> None:
    assert math.isnan(auc([], []))
    assert math.isnan(auc([1, 2], [1, 1]))
    assert math.isnan(log_loss([], []))
    assert math.isnan(normalised_entropy([1.0, 2.0], [0, 0]))


def test_columns_of_unlike_length_and_nan_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="2 scores, 1 labels"):
        auc([1, 2], [1])
    with pytest.raises(ValueError, match="1 of 2 scores are NaN"):
        auc([1, math.nan], [1, 0])
