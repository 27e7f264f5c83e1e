"""Thresholds on an uncertainty score: when to abstain, and what to call out of distribution.

Scores are turned so that higher means less certain; an input is uncertain when its score is *above* the threshold.
The guarantees hold for fresh inputs exchangeable with the examples, and for a temperature that was fixed
beforehand; one that was fitted on the same examples is a single number, and moves them by little.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import InputError, require
from .ranks import check_level, gap, upper_bound

TRUE_POSITIVE_RATE = 0.95
"""Share of out-of-distribution inputs that the OOD threshold catches."""

DELTA = 0.05
"""A bound on the selective risk may fail with this probability."""


def coverage_threshold(scores: np.ndarray, coverage: float, limit: float) -> float:
    """The threshold under which a fresh input is answered with probability at least ``coverage``.

    Args:
        scores: [N] float32.
        coverage: above 0 and below 1.
        limit: highest possible score.

    Raises:
        InputError: too few examples for this coverage.
    """
    return upper_bound(scores, coverage, "coverage", limit)


def detection_threshold(scores: np.ndarray, limit: float, level: float = TRUE_POSITIVE_RATE) -> float:
    """The threshold above which a fresh out-of-distribution input lies with probability at least ``level``.

    Args:
        scores: [N] float32, of out-of-distribution examples.
        limit: lowest possible score.
        level: true-positive rate.

    Raises:
        InputError: too few examples for this level.
    """
    least = np.float32(-upper_bound(-scores, level, "true-positive rate of out-of-distribution data", -limit))
    if (scores == least).any():  # it must be caught itself, and only what lies above is
        least = np.nextafter(least, np.float32(-np.inf))
    return float(str(least))


def risk_threshold(scores: np.ndarray, wrong: np.ndarray, risk: float, limit: float) -> float:
    """The highest threshold found whose answered inputs are wrong with probability at most ``risk``.

    Selection with guaranteed risk (Geifman & El-Yaniv 2017): a binary search over thresholds, each judged by the
    exact binomial bound at a confidence that allows for all steps; together they hold with probability
    1 − :data:`DELTA`.

    Args:
        scores: [N] float32.
        wrong: [N] bool, whether the label was wrong.
        risk: above 0 and below 1.
        limit: highest possible score.

    Raises:
        InputError: no threshold can be shown to keep that risk.
    """
    check_level(risk, "risk")
    order = np.argsort(scores, kind="stable")
    ordered, errors = scores[order], np.cumsum(wrong[order])
    steps = max(1, math.ceil(math.log2(len(scores) + 1)))
    low, high, best = 0, len(scores) - 1, -1
    for _ in range(steps):
        if low > high:
            break
        middle = (low + high) // 2
        last = int(np.searchsorted(ordered, ordered[middle], side="right")) - 1  # with all that tie
        if binomial_bound(int(errors[last]), last + 1, DELTA / steps) <= risk:
            best, low = max(best, last), last + 1
        else:
            high = middle - 1
    if best < 0:
        raise InputError(
            f"no threshold keeps the selective risk at {risk:g} with {1 - DELTA:.0%} confidence on {len(scores)} "
            f"examples, {int(errors[-1])} of them wrong; give more examples or a higher --risk"
        )
    return gap(ordered, best, limit)


def binomial_bound(errors: int, count: int, delta: float) -> float:
    """The largest error rate under which ``errors`` or fewer of ``count`` still have probability ``delta``.

    The upper end of the Clopper–Pearson interval.
    """
    stats = require("scipy.stats", "report", "bound the selective risk")
    return 1.0 if errors >= count else float(stats.beta.ppf(1 - delta, errors + 1, count - errors))
