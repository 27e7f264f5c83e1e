"""What a count of examples promises about a rate: Beta laws, and 95 % ranges from their quantiles.

If c of n examples lie beyond a threshold at an order statistic of the same examples, a fresh input lies beyond it with
a probability that is itself random: Beta(c + 1, n − c), exactly. At the next order statistic it is Beta(c, n − c + 1).
The range holds for both, and for thresholds between them; it is that of Clopper and Pearson (1934).
"""

from __future__ import annotations

import numpy as np

TAIL = 0.025
"""Probability below, and above, a range."""

HALVING = 4
"""Factor of the number of examples that halves a range; exact for many examples."""


def beyond_law(count: int, n: int) -> tuple[int, int]:
    """Parameters of the Beta law of the rate beyond an order statistic that ``count`` of its n examples exceed."""
    return count + 1, max(n - count, 1)


def rate_range(count: int, n: int) -> tuple[float, float]:
    """95 % range of a rate, from ``count`` of n examples."""
    return beta_quantile(TAIL, count, n - count + 1), beta_quantile(1 - TAIL, count + 1, n - count)


def beta_quantile(level: float, a: int, b: int) -> float:
    """Quantile of Beta(a, b), whole numbers ≥ 0: the p with P(Binomial(a + b − 1, p) ≥ a) = ``level``."""
    if not a or not b:
        return float(a > 0)
    k = np.arange(n := a + b - 1)
    choices = np.concatenate([[0.0], np.cumsum(np.log((n - k) / (k + 1)))])  # log of n over k
    low, high = 0.0, 1.0
    for _ in range(50):
        p = (low + high) / 2
        logs = choices + np.arange(n + 1) * np.log(p / (1 - p))
        mass = np.exp(logs - logs.max())
        low, high = (p, high) if mass[a:].sum() < level * mass.sum() else (low, p)
    return (low + high) / 2
