"""Temperature of the averaged members: pool, then calibrate (Rahaman & Thiery 2021).

T minimizes the mean of −log p̄(label) with p̄ = mean_m softmax(z_m / T), under the prior log T ~ N(log T₀, σ²), with T₀
1 or the common T of several labels. Up to a gain of :data:`LEAST_GAIN` in log-likelihood T stays at T₀, since few
examples prove little; with a thousand neither prior nor shrinkage matters (docs/research/method.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...metrics.uncertainty import blocks, logsumexp

SIGMA = 0.5  # standard deviation of log T before the data are seen
LEAST_GAIN = 2.5  # gain in log-likelihood, nats over all examples, up to which T stays; twice it moves T by 94 %
FOLDS = 5  # parts of the examples, each measured at the temperature of the others
STEP = 0.5  # step in log T of the search for an interval that contains the best T


def fit_temperature(member_logits: np.ndarray, labels: np.ndarray, around: float = 1.0) -> float:
    """The temperature, rounded to six digits, from logits [N, M, C] and labels [N]; ``around`` is the prior's T₀."""

    def loss(shift: float) -> float:  # nats in all
        return len(labels) * averaged_nll(member_logits, labels, around * math.exp(shift))

    best = _minimum(lambda shift: loss(shift) + 0.5 * (shift / SIGMA) ** 2)
    gain = loss(0.0) - loss(best)
    moved = 1 - (LEAST_GAIN / gain) ** 4 if gain > LEAST_GAIN else 0.0
    return float(f"{around * math.exp(moved * best):.6g}")


def likeliest_temperature(member_logits: np.ndarray, labels: np.ndarray) -> float:
    """The temperature of lowest NLL without a prior, within a factor of e³ of 1, to compare models."""
    return math.exp(_minimum(lambda shift: averaged_nll(member_logits, labels, math.exp(shift)), limit=3.0))


def held_out_nll(member_logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean NLL of examples that did not fit the temperature: each fifth at the T of the other four."""
    folds = np.random.default_rng(0).permutation(len(labels)) % FOLDS
    total = 0.0
    for fold in range(min(FOLDS, len(labels))):
        out = folds == fold
        temperature = fit_temperature(member_logits[~out], labels[~out])
        total += out.sum() * averaged_nll(member_logits[out], labels[out], temperature)
    return float(total / len(labels))


def averaged_nll(member_logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """Mean −log p̄(label), nats, of the members' averaged probabilities; finite, since computed in logarithms."""
    total = 0.0
    for part in blocks(member_logits):
        scaled = member_logits[part].astype(np.float64) / temperature  # [n, M, C]
        chosen = np.take_along_axis(scaled, labels[part, None, None], axis=2)[..., 0]  # [n, M]
        log_members = chosen - logsumexp(scaled)
        total -= float((logsumexp(log_members) - math.log(scaled.shape[1])).sum())
    return total / len(labels)


def _minimum(function: Callable[[float], float], limit: float = math.inf) -> float:
    """The minimum nearest to 0: steps downhill to ``limit`` until it is enclosed, then golden-section search."""
    downhill = STEP if function(STEP) < function(-STEP) else -STEP
    at, value = 0.0, function(0.0)
    while abs(at) < limit and (further := function(at + downhill)) < value:
        at, value = at + downhill, further
    low, high = at - STEP, at + STEP
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
