"""Thresholds on an uncertainty score: when to abstain, and what to call out of distribution.

Scores are turned so that higher means less certain; an input is uncertain when its score is *above* the threshold.
The guarantees hold for fresh inputs exchangeable with the examples, and for a temperature that was fixed
beforehand; one that was fitted on the same examples is a single number, and moves them by little.
"""

from __future__ import annotations

import math

import numpy as np

from ...errors import InputError, require
from ...metrics.uncertainty import class_scores

DELTA = 0.05
"""A bound on the selective risk may fail with this probability."""


COVERED, SPARED = "coverage", "in-distribution share (1 − false alarm)"
"""What messages call the levels of the two thresholds."""


def coverage_threshold(scores: np.ndarray, coverage: float, limit: float) -> float:
    """The threshold under which a fresh input is answered with probability at least ``coverage``.

    Args:
        scores: [N] float32.
    """
    return upper_bound(scores, coverage, COVERED, limit)


def false_alarm_threshold(scores: np.ndarray, share: float, limit: float) -> float:
    """The threshold above which a fresh in-distribution input lies with probability at most ``share``.

    The order statistic ⌈(n + 1)(1 − α)⌉ of in-distribution scores: a conformal anomaly test (Laxhammar & Falkman 2010),
    which no out-of-distribution example is needed for.

    Args:
        scores: [N] float32, of in-distribution examples.
    """
    return upper_bound(scores, 1 - share, SPARED, limit)


def risk_threshold(scores: np.ndarray, wrong: np.ndarray, risk: float, limit: float) -> float:
    """The highest threshold found whose answered inputs are wrong with probability at most ``risk``.

    Selection with guaranteed risk (Geifman & El-Yaniv 2017): a binary search over thresholds, each judged by the
    exact binomial bound at a confidence that allows for all steps; together they hold with probability
    1 − :data:`DELTA`.

    Args:
        scores: [N] float32.
        wrong: [N] bool, whether the label was wrong.
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


def fit_quantile(probabilities: np.ndarray, labels: np.ndarray, alpha: float, method: str) -> float:
    """The quantile of the labels' scores.

    Args:
        probabilities: [N, C].
        labels: [N] class indices.
    """
    check_level(alpha, "conformal alpha")
    found = class_scores(probabilities, method)[np.arange(len(labels)), labels]
    return upper_bound(found, 1 - alpha, "conformal coverage (1 − alpha)", limit=1.0)


def rank(count: int, level: float) -> int:
    """ceil((n + 1) · level), where rounding of the product does not count.

    >>> rank(9, 0.9), rank(99, 0.95), rank(100, 0.95)
    (9, 95, 96)
    """
    return math.ceil((count + 1) * level - 1e-9)


def upper_bound(values: np.ndarray, level: float, what: str, limit: float) -> float:
    """A number that a fresh value does not exceed with probability at least ``level``.

    It lies between the value of that rank and the next larger one, away from both: a backend that rounds
    differently decides the same.

    Args:
        values: [N] float32, exchangeable with the fresh one.
    """
    check_level(level, what)
    check_count(len(values), level, what)
    return gap(np.sort(values), rank(len(values), level) - 1, limit)


def check_count(count: int, level: float, what: str) -> None:
    """Refuse a level that so few examples cannot show; may be asked before long work."""
    if rank(count, level) > count:
        needed = math.ceil(level / (1 - level) - 1e-9)
        raise InputError(f"{what} of {level:g} needs at least {needed} examples; found {count}")


def gap(ordered: np.ndarray, index: int, limit: float) -> float:
    """A float32 number t with ``ordered[index]`` ≤ t < the next larger value, half way where there is room.

    Args:
        ordered: [N] float32, ascending.
    """
    low = ordered[index]
    above = ordered[np.searchsorted(ordered, low, side="right") :]
    high = above[0] if len(above) else np.float32(max(limit, low))
    middle = np.float32((float(low) + float(high)) / 2)
    return float(str(middle if low <= middle < high else low))  # the shortest decimal that names it


def check_level(level: float, what: str) -> None:
    """Refuse a share that is not between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"{what} is {level:g}; expected a number above 0 and below 1")
