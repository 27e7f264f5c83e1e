"""Post-hoc detection scores of one model's logits: what can be told of an input without training data."""

from __future__ import annotations

import numpy as np

from .labels import label_entropy
from .uncertainty import blocks, entropy, logsumexp

GAMMA = 0.1
"""Exponent γ of GEN: that of its paper."""

LIKELIEST = 100
"""Classes that GEN sums over, at most: those of its paper, so that a long tail of impossible classes adds no noise."""


def logit_scores(logits: np.ndarray) -> dict[str, np.ndarray]:
    """Scores by name, [N] float64 each; higher means less like the training data. No temperature is applied.

    With p = softmax(z):

    - ``max_probability``: −max_c p_c (Hendrycks and Gimpel 2017);
    - ``max_logit``: −max_c z_c (Hendrycks et al. 2022);
    - ``predictive_entropy``: −Σ_c p_c log p_c, nats;
    - ``energy``: −log Σ_c exp z_c, nats (Liu et al. 2020);
    - ``gen``: Σ (p_c (1 − p_c))^γ over the likeliest classes, the generalised entropy of Liu et al. (2023), with
      γ = :data:`GAMMA` and at most :data:`LIKELIEST` classes.

    Args:
        logits: z, [N, C].
    """
    parts = [_scores(logits[part].astype(np.float64)) for part in blocks(logits)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def label_logit_scores(logits: np.ndarray) -> dict[str, np.ndarray]:
    """Scores of a model whose labels do not exclude each other, [N] float64 each; higher means less like its data.

    With p = 1 / (1 + exp(−z)) of each label:

    - ``max_logit``: −max_c z_c (Hendrycks et al. 2022, who take it for several labels, too);
    - ``predictive_entropy``: −Σ_c p_c log p_c + (1 − p_c) log(1 − p_c), nats;
    - ``energy``: −Σ_c log(1 + exp z_c), nats (JointEnergy, Wang et al. 2021).

    Args:
        logits: z, [N, C].
    """
    precise = logits.astype(np.float64)
    with np.errstate(over="ignore"):
        probabilities = 1 / (1 + np.exp(-precise))
    return {
        "max_logit": -precise.max(axis=1),
        "predictive_entropy": label_entropy(probabilities).sum(axis=1),
        "energy": -np.logaddexp(0.0, precise).sum(axis=1),
    }


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
    kept = np.partition(probabilities, tail, axis=1)[:, tail:] if tail else probabilities
    found: np.ndarray = ((kept * np.maximum(1 - kept, 0)) ** GAMMA).sum(axis=1)
    return found
