"""Whether labels that a model gets wrong are those of another order of its classes."""

from __future__ import annotations

import math

import numpy as np

LIMIT = 1e-6
"""Largest p-value by which another order is called one."""

NOTE = (
    "the model's answers are wrong more often than by chance, yet they follow the labels in another order of the "
    "classes: the integers of the labels probably count the classes in another order than the model; give class names "
    "(texts, or a column of datasets with its ClassLabel)"
)


def other_order(predicted: np.ndarray, labels: np.ndarray, classes: int) -> bool:
    """Whether accuracy is below chance and a renaming of classes, found on one half of the rows, fits the other.

    The p-value is the Chernoff bound of the binomial tail, where predictions and labels are independent.

    Args:
        predicted: class indices, [N].
        labels: class indices, [N].
        classes: C.
    """
    if not len(labels) or np.mean(predicted == labels) >= 1 / classes:
        return False
    order = np.random.default_rng(0).permutation(len(labels))
    first, second = order[::2], order[1::2]
    counts = np.zeros((classes, classes))
    np.add.at(counts, (predicted[first], labels[first]), 1)
    renamed = counts.argmax(axis=1)[predicted[second]]
    hits, n = int(np.sum(renamed == labels[second])), len(second)
    shares = np.bincount(renamed, minlength=classes) @ np.bincount(labels[second], minlength=classes)
    return n > 0 and _tail(hits, n, float(shares) / n**2) < LIMIT


def _tail(hits: int, n: int, rate: float) -> float:
    """Upper bound of P(X ≥ hits) for X ~ B(n, rate)."""
    share = hits / n
    if share <= rate:
        return 1.0
    if rate == 0 or rate >= 1:
        return float(rate >= 1)
    divergence = share * math.log(share / rate) + (
        0 if share == 1 else (1 - share) * math.log((1 - share) / (1 - rate))
    )
    return math.exp(-n * divergence)
