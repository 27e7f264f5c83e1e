"""Quality of probabilities and of uncertainty scores, as NumPy functions.

Classification metrics take ``probabilities`` [N, C] and ``labels`` [N]. Detection metrics follow
the OpenOOD convention: out-of-distribution (OOD) is the positive class and a higher score means
more uncertain.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import require

BINS = 15
"""Bins of the calibration errors."""


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Share of examples whose most probable class is the label."""
    return float((probabilities.argmax(axis=1) == labels).mean())


def negative_log_likelihood(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean −log p(label), nats; probabilities below 1e-12 count as 1e-12."""
    chosen = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(np.maximum(chosen, 1e-12)).mean())


def brier_score(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean squared distance of the probabilities from the one-hot label, summed over classes: 0 to 2 (Brier 1950)."""
    return float(brier_terms(probabilities, labels).mean())


def brier_terms(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Σ_c (p_c − 1[c = label])² of each example, [N] float64."""
    precise = probabilities.astype(np.float64)
    terms: np.ndarray = (precise**2).sum(axis=1) - 2 * precise[np.arange(len(labels)), labels] + 1
    return terms


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> float:
    """Mean |accuracy − confidence| over equal-width confidence bins, weighted by their size.

    Guo et al. 2017; confidence is the largest *averaged* probability. Bins are open below, closed above.
    """
    return calibration_error(probabilities.max(axis=1), probabilities.argmax(axis=1) == labels, bins)


def adaptive_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> float:
    """The same over bins of (nearly) equally many examples, in order of confidence (Nguyen & O'Connor 2015)."""
    return adaptive_error(probabilities.max(axis=1), probabilities.argmax(axis=1) == labels, bins)


def calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """:func:`expected_calibration_error` of confidences [N] and whether each answer was correct [N]."""
    confidence = confidence.astype(np.float64)
    gaps = np.bincount(confidence_bins(confidence, bins), weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def adaptive_error(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """:func:`adaptive_calibration_error` of confidences [N] and whether each answer was correct [N].

    Examples that tie in their confidence each count with their tie's mean, so their order does not matter.
    """
    order = np.argsort(confidence, kind="stable")
    ordered, gaps = confidence[order], np.cumsum((correct - confidence.astype(np.float64))[order])
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    sums = np.interp(equal_bins(len(gaps), bins), np.append(0, ends + 1), np.append(0.0, gaps[ends]))
    return float(np.abs(np.diff(sums)).sum() / len(gaps))


def equal_bins(count: int, bins: int) -> np.ndarray:
    """Edges of bins of (nearly) equally many examples, from 0 to ``count``; fewer bins where there are fewer."""
    return np.unique(np.arange(bins + 1) * count // bins)


def answered(coverage: float, count: int) -> int:
    """Inputs answered at a coverage: a share of ``count``, rounded up to a whole one."""
    return max(1, math.ceil(coverage * count - 1e-9))


def confidence_bins(confidence: np.ndarray, bins: int) -> np.ndarray:
    """Index [N] of each confidence's bin, of equal width, open below and closed above."""
    return np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)


def auroc(in_distribution: np.ndarray, out_of_distribution: np.ndarray) -> float:
    """Probability that an OOD example scores above an in-distribution one; ties count half."""
    scores, positive = _joined(in_distribution, out_of_distribution)
    metrics = require("sklearn.metrics", "report", "compute the AUROC")
    return float(metrics.roc_auc_score(positive, scores))


def fpr95(in_distribution: np.ndarray, out_of_distribution: np.ndarray) -> float:
    """Share of in-distribution examples flagged when the threshold catches 95 % of the OOD ones."""
    scores, positive = _joined(in_distribution, out_of_distribution)
    metrics = require("sklearn.metrics", "report", "compute the FPR95")
    false_rate, true_rate, _ = metrics.roc_curve(positive, scores, drop_intermediate=False)
    return float(false_rate[np.argmax(true_rate >= 0.95)])


def aupr(in_distribution: np.ndarray, out_of_distribution: np.ndarray) -> float:
    """Average precision of calling the highest scores out of distribution."""
    scores, positive = _joined(in_distribution, out_of_distribution)
    metrics = require("sklearn.metrics", "report", "compute the AUPR")
    return float(metrics.average_precision_score(positive, scores))


def _joined(negative: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores = np.concatenate([negative, positive]).astype(np.float64)
    return scores, np.concatenate([np.zeros(len(negative), bool), np.ones(len(positive), bool)])
