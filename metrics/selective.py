"""Selective prediction: how wrong the answers are when the least certain inputs are left unanswered.

Inputs that tie in their score count as if they stood in random order: each has the mean error of its tie.
"""

from __future__ import annotations

import numpy as np

from .classification import answered


def risk_coverage(scores: np.ndarray, wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The risk–coverage curve: after each input, most certain first, the share answered and the errors among it.

    Args:
        scores: [N], higher means less certain.
        wrong: [N] bool.

    Returns:
        Coverage [N], rising to 1, and risk [N], ending at the error rate.
    """
    answers = np.arange(1, len(scores) + 1)
    return answers / len(scores), _errors(scores, wrong) / answers


def aurc(scores: np.ndarray, wrong: np.ndarray) -> float:
    """Area under the risk–coverage curve: the mean risk over all coverages (Geifman & El-Yaniv 2017)."""
    return float(risk_coverage(scores, wrong)[1].mean())


def augrc(scores: np.ndarray, wrong: np.ndarray) -> float:
    """Area under the generalised risk–coverage curve: mean share of inputs answered wrongly (Traub et al. 2024).

    Trapezoids from coverage 0: with error rate e and the AUROC a of finding errors, it is (1 − a)·e·(1 − e) + e²/2.
    """
    joint = np.append(0.0, _errors(scores, wrong)) / len(scores)
    return float((joint[1:] + joint[:-1]).mean() / 2)


def risk_at_coverage(scores: np.ndarray, wrong: np.ndarray, coverage: float) -> float:
    """Share of errors when the most certain ``coverage`` of the inputs, rounded up to a whole one, is answered."""
    answers = answered(coverage, len(scores))
    return float(_errors(scores, wrong)[answers - 1] / answers)


def _errors(scores: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Expected number of errors among the first inputs, [N], most certain first."""
    order = np.argsort(scores, kind="stable")
    ordered, errors = scores[order], np.cumsum(wrong[order], dtype=np.float64)
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(scores) - 1)
    known = np.append(-1, ends)
    return np.interp(np.arange(len(scores)), known, np.append(0.0, errors[ends]))
