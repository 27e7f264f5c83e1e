"""Temperature of the averaged members: pool, then calibrate (Rahaman & Thiery 2021).

T minimises the mean of −log p̄(label) with p̄ = mean_m softmax(z_m / T). The average of separately calibrated
members would be underconfident.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np

from ...metrics.uncertainty import blocks, logsumexp
from ...progress import Progress, no_progress

log = logging.getLogger(__name__)

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0

MARGIN = 1.25
"""The examples do not bound a temperature within this factor of either end."""

STEPS = 25
"""Number of temperatures in the coarse search, evenly spaced in log T."""


def fit_temperature(member_logits: np.ndarray, labels: np.ndarray, progress: Progress = no_progress) -> float:
    """The temperature of lowest negative log-likelihood, rounded to six digits; logs a warning if unbounded."""
    temperature = best_temperature(member_logits, labels, progress)
    if not is_bounded(temperature):
        reason = "(nearly) all answers are correct" if temperature < 1 else "the answers are no better than chance"
        log.warning(
            "the temperature %g is at the end of the search range (%g to %g), since on these examples %s; the fitted "
            "probabilities and thresholds are unreliable: calibrate on more and harder examples",
            temperature, MIN_TEMPERATURE, MAX_TEMPERATURE, reason,
        )  # fmt: skip
    return temperature


def best_temperature(member_logits: np.ndarray, labels: np.ndarray, progress: Progress = no_progress) -> float:
    """The temperature of :func:`fit_temperature` without a warning: grid over log T, then golden-section search."""
    grid = np.linspace(math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE), STEPS)
    losses = [averaged_nll(member_logits, labels, math.exp(at)) for at in progress(grid, STEPS, "fitting temperature")]
    best = int(np.argmin(losses))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, STEPS - 1)]
    best_log = _golden(lambda at: averaged_nll(member_logits, labels, math.exp(at)), low, high)
    return float(f"{math.exp(best_log):.6g}")


def is_bounded(temperature: float) -> bool:
    """Return True if the examples bound a temperature."""
    return MIN_TEMPERATURE * MARGIN < temperature < MAX_TEMPERATURE / MARGIN


def averaged_nll(member_logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """Mean −log p̄(label), nats, of the members' averaged probabilities; finite, since computed in logarithms."""
    total = 0.0
    for part in blocks(member_logits):
        scaled = member_logits[part].astype(np.float64) / temperature  # [n, M, C]
        chosen = np.take_along_axis(scaled, labels[part, None, None], axis=2)[..., 0]  # [n, M]
        log_members = chosen - logsumexp(scaled)
        total -= float((logsumexp(log_members) - math.log(scaled.shape[1])).sum())
    return total / len(labels)


def _golden(function: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of a unimodal function in [low, high], by golden-section search."""
    ratio = (math.sqrt(5) - 1) / 2
    inner = [high - ratio * (high - low), low + ratio * (high - low)]
    values = [function(at) for at in inner]
    while high - low > 1e-5:
        if values[0] <= values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - ratio * (high - low)
            values[0] = function(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + ratio * (high - low)
            values[1] = function(inner[1])
    return (low + high) / 2
