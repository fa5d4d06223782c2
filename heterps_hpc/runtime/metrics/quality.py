"""How good scores are: exact AUC, log loss, normalised entropy, by sample weight.

Pure functions of all scores and labels of a data set; ranks gather theirs at the reporter, which
calls these. Exactness matters more than speed here: histograms of scores would make the result of
an evaluation depend on their bins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def auc(scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Area under the ROC curve: the chance that a click outscores a non-click, ties half.

    NaN when all labels are equal, as there is no pair to compare.
    """
    score, label, weight = _columns(scores, labels, weights)
    pairs = float((weight * label).sum() * (weight * (1 - label)).sum())
    if pairs <= 0:
        return float("nan")
    order = np.argsort(score, kind="stable")
    score, clicks, shows = score[order], (weight * label)[order], (weight * (1 - label))[order]
    firsts = np.flatnonzero(np.r_[True, score[1:] != score[:-1]])
    tied_clicks = np.add.reduceat(clicks, firsts)
    tied_shows = np.add.reduceat(shows, firsts)
    below = np.cumsum(tied_shows) - tied_shows
    return float((tied_clicks * (below + 0.5 * tied_shows)).sum() / pairs)


def log_loss(logits: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Mean binary cross entropy of logits, in nats; stable for logits of any size."""
    logit, label, weight = _columns(logits, labels, weights)
    total = float(weight.sum())
    if total <= 0:
        return float("nan")
    losses = np.logaddexp(0.0, logit) - label * logit
    return float((weight * losses).sum() / total)


def normalised_entropy(
    logits: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None
) -> float:
    """Log loss divided by that of always saying the mean label: below 1 means something learned.

    NaN when all labels are equal.
    """
    _, label, weight = _columns(logits, labels, weights)
    total = float(weight.sum())
    rate = float((weight * label).sum() / total) if total > 0 else 0.0
    if not 0 < rate < 1:
        return float("nan")
    baseline = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
    return log_loss(logits, labels, weights) / float(baseline)


def _columns(
    scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None
) -> tuple[Floats, Floats, Floats]:
    score = np.asarray(scores, np.float64).reshape(-1)
    label = np.asarray(labels, np.float64).reshape(-1)
    ones = np.ones(len(score)) if weights is None else weights
    weight = np.asarray(ones, np.float64).reshape(-1)
    if not len(score) == len(label) == len(weight):
        raise ValueError(
            f"{len(score)} scores, {len(label)} labels and {len(weight)} weights; "
            "each sample needs one of each"
        )
    if np.isnan(score).any():
        raise ValueError(f"{int(np.isnan(score).sum())} of {len(score)} scores are NaN")
    return score, label, weight
