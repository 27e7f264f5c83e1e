"""Conformal prediction sets: classes that hold the label with probability at least 1 − α.

Each method scores a class of an input; the set is all classes whose score is at most the quantile of rank
ceil((n + 1)(1 − α)) of the labels' scores on calibration examples.

    lac   1 − p(class): the smallest sets on average (Sadinle, Lei & Wasserman 2019); a set may be empty
    aps   the probability of all better classes and half of its own: sets adapt to how hard an input is (Romano,
          Sesia & Candès 2020, with 1/2 in place of their random number, so that the same input always gets
          the same set); a set always holds the best class, so it may cover more than asked for
"""

from __future__ import annotations

import numpy as np

from .ranks import check_level, upper_bound

METHODS = ("lac", "aps")


def class_scores(probabilities: np.ndarray, method: str) -> np.ndarray:
    """Nonconformity of every class, [N, C] float32; higher means less conforming.

    Args:
        probabilities: [N, C].
        method: of :data:`METHODS`.
    """
    if method == "lac":
        return (1 - probabilities.astype(np.float64)).astype(np.float32)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1).astype(np.float64)  # best first
    middle = np.cumsum(ranked, axis=1) - ranked / 2
    scores = np.empty(probabilities.shape, np.float32)
    np.put_along_axis(scores, order, middle.astype(np.float32), axis=1)
    return scores


def fit_quantile(probabilities: np.ndarray, labels: np.ndarray, alpha: float, method: str) -> float:
    """The quantile of the labels' scores.

    Args:
        probabilities: [N, C].
        labels: [N] class indices.
        alpha: share of labels that sets may miss, above 0 and below 1.
        method: of :data:`METHODS`.

    Raises:
        InputError: α out of range, or too few examples for it.
    """
    check_level(alpha, "conformal alpha")
    found = class_scores(probabilities, method)[np.arange(len(labels)), labels]
    return upper_bound(found, 1 - alpha, "conformal coverage (1 − alpha)", limit=1.0)


def prediction_sets(probabilities: np.ndarray, quantile: float, method: str) -> np.ndarray:
    """Which classes are in each input's set, [N, C] bool.

    Args:
        probabilities: [N, C].
        quantile: of :func:`fit_quantile`.
        method: of :data:`METHODS`.
    """
    inside = class_scores(probabilities, method) <= np.float32(quantile)
    if method == "aps":
        inside[np.arange(len(inside)), probabilities.argmax(axis=1)] = True
    return inside
