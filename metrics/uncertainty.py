"""Member logits → averaged probabilities and uncertainty scores, in NumPy, as in the uncertainty head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np


def summarise(member_logits: np.ndarray, temperature: float) -> dict[str, np.ndarray]:
    """Float32 fields of a ``Prediction`` from member logits [N, M, C]: ``probabilities`` [N, C], and scores [N]."""
    parts = [_summarised(member_logits[part].astype(np.float64), temperature) for part in blocks(member_logits)]
    return {name: np.concatenate([part[name] for part in parts]).astype(np.float32) for name in parts[0]}


def uncertainty(scores: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A score [N] turned so that higher means less certain."""
    return -scores[name] if name == "confidence" else scores[name]


def energy(member_logits: np.ndarray) -> np.ndarray:
    """−mean_m log Σ exp z_m (Liu et al. 2020), without a temperature: [N, M, C] → [N] float64."""
    energies: np.ndarray = -logsumexp(member_logits.astype(np.float64)).mean(axis=1)
    return energies


def logsumexp(values: np.ndarray) -> np.ndarray:
    """Logarithm of Σ exp over the last axis."""
    top = values.max(axis=-1, keepdims=True)
    return np.log(np.exp(values - top).sum(axis=-1)) + top[..., 0]


def highest_entropy(classes: int, factor: int = 1) -> np.float32:
    """The largest float32 that is at most ``factor`` · log C; every head clips its entropies to it."""
    exact = factor * math.log(classes)
    nearest = np.float32(exact)
    return nearest if float(nearest) <= exact else np.nextafter(nearest, np.float32(0))


def entropy(probabilities: np.ndarray) -> np.ndarray:
    """Shannon entropy over the last axis, nats; 0·log 0 = 0."""
    return -(probabilities * np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))).sum(axis=-1)


def _summarised(unscaled: np.ndarray, temperature: float) -> dict[str, np.ndarray]:
    logits = unscaled / temperature
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
        "energy": energy(unscaled),
    }


BLOCK = 1 << 22
"""Number of logits processed at a time, to limit memory for float64 copies."""


def blocks(member_logits: np.ndarray) -> list[slice]:
    """Slices of the examples, of about :data:`BLOCK` logits each."""
    size = max(1, BLOCK // math.prod(member_logits.shape[1:]))
    return [slice(start, start + size) for start in range(0, len(member_logits), size)]


Method = Literal["lac", "aps"]

METHODS: tuple[str, ...] = get_args(Method)


def class_scores(probabilities: np.ndarray, method: str) -> np.ndarray:
    """Nonconformity of every class from probabilities [N, C], float32; higher means less conforming."""
    if method == "lac":
        return (1 - probabilities.astype(np.float64)).astype(np.float32)
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1).astype(np.float64)  # best first
    middle = np.cumsum(ranked, axis=1) - ranked / 2
    scores = np.empty(probabilities.shape, np.float32)
    np.put_along_axis(scores, order, middle.astype(np.float32), axis=1)
    return scores


def prediction_sets(probabilities: np.ndarray, quantile: float, method: str) -> np.ndarray:
    """Membership of each class in each input's set, [N, C] bool."""
    inside = class_scores(probabilities, method) <= np.float32(quantile)
    if method == "aps":
        inside[np.arange(len(inside)), probabilities.argmax(axis=1)] = True
    return inside


def pairwise_divergence(member_probabilities: np.ndarray) -> np.ndarray:
    """Mean Kullback–Leibler divergence over ordered pairs of members [N, M, C], [N] nats; zeros for one member."""
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
    for labels in member_probabilities.argmax(axis=2).T:  # one member, [N]
        votes[np.arange(count), labels] += 1
    alike = (votes * (votes - 1)).sum(axis=1)  # pairs of members with one best class, each twice
    return 1 - alike / (members * (members - 1))


GAMMA = 0.1
"""Exponent γ of GEN, as in its paper."""

LIKELIEST = 100
"""Largest number of classes that GEN sums over, as in its paper; a long tail of improbable classes adds noise."""


def logit_scores(logits: np.ndarray) -> dict[str, np.ndarray]:
    """Scores of logits [N, C] by name, [N] float64 each; higher means less like the training data.

    With p = softmax(z):

    - ``max_probability``: −max_c p_c (Hendrycks and Gimpel 2017);
    - ``max_logit``: −max_c z_c (Hendrycks et al. 2022);
    - ``predictive_entropy``: −Σ_c p_c log p_c, nats;
    - ``energy``: −log Σ_c exp z_c, nats (Liu et al. 2020);
    - ``gen``: Σ (p_c (1 − p_c))^γ over the likeliest classes, the generalised entropy of Liu et al. (2023), with
      γ = :data:`GAMMA` and at most :data:`LIKELIEST` classes.
    """
    parts = [_scores(logits[part].astype(np.float64)) for part in blocks(logits)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _scores(logits: np.ndarray) -> dict[str, np.ndarray]:
    volume = logsumexp(logits)  # [n]
    probabilities = np.exp(logits - volume[:, None])  # [n, C]
    return {
        "max_probability": -probabilities.max(axis=1),
        "max_logit": -logits.max(axis=1),
        "predictive_entropy": entropy(probabilities),
        "energy": -volume,
        "gen": _generalised_entropy(probabilities),
    }


def _generalised_entropy(probabilities: np.ndarray) -> np.ndarray:
    """GEN of probabilities [n, C]: [n]."""
    tail = max(0, probabilities.shape[1] - LIKELIEST)
    likeliest = np.partition(probabilities, tail, axis=1)[:, tail:] if tail else probabilities
    entropies: np.ndarray = ((likeliest * np.maximum(1 - likeliest, 0)) ** GAMMA).sum(axis=1)
    return entropies
