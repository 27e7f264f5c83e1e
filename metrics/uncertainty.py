"""Member logits → averaged probabilities and uncertainty scores, in NumPy: what the uncertainty head computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np


def summarise(member_logits: np.ndarray, temperature: float) -> dict[str, np.ndarray]:
    """The fields of a ``Prediction`` that thresholds may stand on.

    Args:
        member_logits: [N, M, C], before the temperature.

    Returns:
        ``probabilities`` [N, C], ``confidence``, ``predictive_entropy``, ``expected_entropy``,
        ``mutual_information`` and ``energy`` [N], float32.
    """
    parts = [_summarised(member_logits[part].astype(np.float64) / temperature) for part in blocks(member_logits)]
    found = {name: np.concatenate([part[name] for part in parts]).astype(np.float32) for name in parts[0]}
    energies = [energy(member_logits[part]) for part in blocks(member_logits)]
    return {**found, "energy": np.concatenate(energies).astype(np.float32)}


def uncertainty(scores: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A score [N] turned so that higher means less certain."""
    return -scores[name] if name == "confidence" else scores[name]


def energy(member_logits: np.ndarray) -> np.ndarray:
    """−mean_m log Σ exp z_m (Liu et al. 2020), without a temperature: [N, M, C] → [N] float64."""
    energies: np.ndarray = -logsumexp(member_logits.astype(np.float64)).mean(axis=1)
    return energies


def area_under_roc(known: np.ndarray, unknown: np.ndarray) -> float:
    """Share of pairs in which the OOD example scores higher; ties count half (the exact AUROC)."""
    return float(_below(unknown, known).mean())


Ranked = tuple[np.ndarray, np.ndarray]
"""A score [N] of in-distribution examples, or of right answers, and [K] of the others."""


def area_beyond(one: Ranked, other: Ranked) -> tuple[float, float]:
    """By how much one score's AUROC is above another's on the same examples, and the standard error of that.

    As of DeLong et al. (1988). With fewer than two examples of either side the error is infinite.
    """
    (known, unknown), (other_known, other_unknown) = one, other
    apart = area_under_roc(*one) - area_under_roc(*other)
    if min(len(known), len(unknown)) < 2:
        return apart, math.inf
    beyond = _below(unknown, known) - _below(other_unknown, other_known)
    within = _below(-known, -unknown) - _below(-other_known, -other_unknown)
    return apart, math.sqrt(beyond.var(ddof=1) / len(beyond) + within.var(ddof=1) / len(within))


def _below(these: np.ndarray, those: np.ndarray) -> np.ndarray:
    """Of each of these the share of those below it; ties count half."""
    ordered = np.sort(those)
    return (np.searchsorted(ordered, these, "left") + np.searchsorted(ordered, these, "right")) / (2 * len(ordered))


def logsumexp(values: np.ndarray) -> np.ndarray:
    """Logarithm of Σ exp over the last axis."""
    top = values.max(axis=-1, keepdims=True)
    return np.log(np.exp(values - top).sum(axis=-1)) + top[..., 0]


def highest_entropy(classes: int, factor: int = 1) -> np.float32:
    """The largest float32 that is no more than ``factor`` · log C: what every head cuts its entropies to."""
    exact = factor * math.log(classes)
    nearest = np.float32(exact)
    return nearest if float(nearest) <= exact else np.nextafter(nearest, np.float32(0))


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Shannon entropy over the last axis, nats; 0·log 0 = 0."""
    return -(probabilities * np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))).sum(axis=-1)


def _summarised(logits: np.ndarray) -> dict[str, np.ndarray]:
    members = np.exp(logits - logits.max(axis=-1, keepdims=True))
    members /= members.sum(axis=-1, keepdims=True)  # [n, M, C]
    mean = members.mean(axis=1)  # [n, C]
    highest = highest_entropy(logits.shape[-1])
    expected = np.clip(entropy(members).mean(axis=1), 0, highest)
    total = np.maximum(np.minimum(entropy(mean), highest), expected)
    return {
        "probabilities": mean,
        "confidence": mean.max(axis=1),
        "predictive_entropy": total,
        "expected_entropy": expected,
        "mutual_information": total - expected,
    }


BLOCK = 1 << 22
"""Logits worked on at a time, so that float64 copies of large sets stay small."""


def blocks(member_logits: np.ndarray) -> list[slice]:
    """Slices of the examples, of about :data:`BLOCK` logits each."""
    size = max(1, BLOCK // math.prod(member_logits.shape[1:]))
    return [slice(start, start + size) for start in range(0, len(member_logits), size)]


Method = Literal["lac", "aps"]
"""How prediction sets are made: the smallest ones, or adaptive ones."""

METHODS: tuple[str, ...] = get_args(Method)


def class_scores(probabilities: np.ndarray, method: str) -> np.ndarray:
    """Nonconformity of every class, [N, C] float32; higher means less conforming.

    Args:
        probabilities: [N, C].
    """
    if method == "lac":
        return (1 - probabilities.astype(np.float64)).astype(np.float32)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1).astype(np.float64)  # best first
    middle = np.cumsum(ranked, axis=1) - ranked / 2
    scores = np.empty(probabilities.shape, np.float32)
    np.put_along_axis(scores, order, middle.astype(np.float32), axis=1)
    return scores


def prediction_sets(probabilities: np.ndarray, quantile: float, method: str) -> np.ndarray:
    """Which classes are in each input's set, [N, C] bool.

    Args:
        probabilities: [N, C].
    """
    inside = class_scores(probabilities, method) <= np.float32(quantile)
    if method == "aps":
        inside[np.arange(len(inside)), probabilities.argmax(axis=1)] = True
    return inside


def pairwise_divergence(member_probabilities: np.ndarray) -> np.ndarray:
    """Mean Kullback–Leibler divergence over ordered pairs of members, [N], nats; zeros for one member.

    Args:
        member_probabilities: [N, M, C].
    """
    members = member_probabilities.shape[1]
    if members == 1:
        return np.zeros(len(member_probabilities))
    p = np.maximum(member_probabilities.astype(np.float64), np.finfo(np.float32).tiny)
    log = np.log(p)
    own = (p * log).sum(axis=2).sum(axis=1)  # Σ_a Σ_c p_a log p_a
    crossed = (p.sum(axis=1) * log.sum(axis=1)).sum(axis=1) - own  # Σ_{a≠b} Σ_c p_a log p_b
    return np.maximum(((members - 1) * own - crossed) / (members * (members - 1)), 0.0)


def pairwise_disagreement(member_probabilities: np.ndarray) -> np.ndarray:
    """Share of pairs of members whose best classes differ, [N]; zeros for one member."""
    count, members, classes = member_probabilities.shape
    if members == 1:
        return np.zeros(count)
    votes = np.zeros((count, classes), np.int64)
    for labels in member_probabilities.argmax(axis=2).T:  # of one member, [N]
        votes[np.arange(count), labels] += 1
    alike = (votes * (votes - 1)).sum(axis=1)  # pairs of members with one best class, each twice
    return 1 - alike / (members * (members - 1))
