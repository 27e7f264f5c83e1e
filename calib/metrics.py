"""Quality of probabilities and of uncertainty scores, as NumPy functions.

Classification metrics take ``probabilities`` [N, C] and ``labels`` [N]. Detection metrics follow
the OpenOOD convention: out-of-distribution (OOD) is the positive class and a higher score means
more uncertain.
"""

from __future__ import annotations

import numpy as np

from ..errors import require


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Share of examples whose most probable class is the label."""
    return float((probabilities.argmax(axis=1) == labels).mean())


def negative_log_likelihood(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean −log p(label), nats; probabilities below 1e-12 count as 1e-12."""
    chosen = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(np.maximum(chosen, 1e-12)).mean())


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """Mean |accuracy − confidence| over equal-width confidence bins, weighted by their size.

    Guo et al. 2017; confidence is the largest *averaged* probability. Bins are open below, closed above.
    """
    confidence = probabilities.max(axis=1).astype(np.float64)
    correct = probabilities.argmax(axis=1) == labels
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(which, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(labels))


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


def _joined(negative: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores = np.concatenate([negative, positive]).astype(np.float64)
    return scores, np.concatenate([np.zeros(len(negative), bool), np.ones(len(positive), bool)])
