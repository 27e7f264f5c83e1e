"""AUROC, AUPR and FPR95 of one score by a single sort: for resampling, where the library's functions are too slow.

The tests hold these equal to scikit-learn's, which give the reported values (``calib.metrics``).
"""

from __future__ import annotations

import math

import numpy as np

from . import metrics

NAMES = ("auroc", "aupr", "fpr95")

Figures = dict[str, float]


def by_library(negative: np.ndarray, positive: np.ndarray) -> Figures:
    """AUROC, AUPR and FPR95 from scikit-learn; not numbers where one side is empty.

    Args:
        negative: [N] scores of what is not to be found.
        positive: [K] scores of what is; higher means found.
    """
    if not len(negative) or not len(positive):
        return dict.fromkeys(NAMES, math.nan)
    return {name: getattr(metrics, name)(negative, positive) for name in NAMES}


def by_sorting(negative: np.ndarray, positive: np.ndarray) -> Figures:
    """The same figures, without a library's checks."""
    if not len(negative) or not len(positive):
        return dict.fromkeys(NAMES, math.nan)
    scores = np.concatenate([negative, positive])
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    ends = np.append(ordered[1:] != ordered[:-1], True)  # ties change sides together
    found = np.cumsum(order >= len(negative))[ends]
    flagged = np.flatnonzero(ends) + 1
    true_rate, false_rate = found / len(positive), (flagged - found) / len(negative)
    rise = np.diff(true_rate, prepend=0.0)
    return {
        "auroc": float(np.trapezoid(np.append(0.0, true_rate), np.append(0.0, false_rate))),
        "aupr": float((rise * found / flagged).sum()),
        "fpr95": float(false_rate[np.argmax(true_rate >= 0.95)]),
    }
